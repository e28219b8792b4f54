#include "tokenizer/sentencepiece/metaspace_tokenizer.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/files/unsupported_tokenizer.h"

namespace fastsft {
namespace {

SentencePieceBpe make_bpe(const TokenizerJson& json, WordRule words) {
  SentencePieceModel model = make_metaspace_model(json);
  const MergeRules merges = make_metaspace_merges(json, model);
  return SentencePieceBpe(std::move(model), merges, words);
}

std::vector<AddedToken> list_normalized(const std::map<int32_t, AddedToken>& added,
                                        bool has_normalizer) {
  std::vector<AddedToken> tokens;
  for (const auto& [id, token] : added) {
    if (token.normalized) tokens.push_back(token);
  }
  if (has_normalizer && !tokens.empty()) {
    throw UnsupportedTokenizer("the added token \"" + tokens[0].text +
                               "\", looked for among U+2581");
  }
  return tokens;
}

// Returns the byte for a text such as "<0x41>", read as Rust's decoder does, or -1 for another
// text.
int parse_byte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int value = 0;
  for (const char digit : text.substr(3, 2)) {
    if (!std::isxdigit(static_cast<unsigned char>(digit))) return -1;
    value = value * 16 + (digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
  }
  return value;
}

// Appends bytes as text. If they are not valid UTF-8 as a whole, each byte becomes one U+FFFD.
void append_byte_run(std::string& bytes, std::string& text) {
  if (find_invalid_utf8(bytes) == std::string_view::npos) {
    text += bytes;
  } else {
    for (size_t i = 0; i < bytes.size(); ++i) text += "\xEF\xBF\xBD";
  }
  bytes.clear();
}

}  // namespace

MetaspaceTokenizer::MetaspaceTokenizer(const TokenizerJson& json,
                                       const JsonTokenizerSettings& settings)
    : VocabularyTokenizer(json, settings),
      rules_(parse_metaspace_rules(json)),
      normalized_added_(list_normalized(vocabulary().added(), rules_.has_normalizer)),
      original_matcher_(list_unnormalized()),
      normalized_matcher_(pointers_to(normalized_added_)),
      bpe_(make_bpe(json, rules_.words)) {
  for (const auto& [id, token] : vocabulary().added()) {
    strips_ |= token.strips_left || token.strips_right;
  }
}

template <typename Output>
void MetaspaceTokenizer::encode_plain(std::string_view text, uint32_t offset,
                                      SentencePieceBpe::Scratch& scratch,
                                      std::vector<Output>& tokens) const {
  if (text.empty()) return;
  const bool begins_with_space = text.starts_with(' ') || text.starts_with(kSpaceMark);
  bool has_prefix = false;
  switch (rules_.prefix) {
    case PrefixRule::kNever:
      break;
    case PrefixRule::kAlways:
      has_prefix = true;
      break;
    case PrefixRule::kUnlessSpace:
      has_prefix = !begins_with_space;
      break;
    case PrefixRule::kFirstUnlessSpace:
      has_prefix = offset == 0 && !begins_with_space;
      break;
  }
  bpe_.encode(text, offset, has_prefix, scratch, tokens);
}

template <typename Output>
void MetaspaceTokenizer::encode_into(std::string_view text, SpecialText specials,
                                     std::vector<Output>& tokens) const {
  require(text.size() < kMaxText, "a text of ", text.size(), " bytes is too long to tokenize");
  const SentencePieceBpe::Borrowed scratch(bpe_);
  encode_between(original_matcher_, text, 0, specials, tokens, [&](size_t begin, size_t end) {
    const std::string_view part = text.substr(begin, end - begin);
    encode_between(normalized_matcher_, part, static_cast<uint32_t>(begin), specials, tokens,
                   [&](size_t first, size_t last) {
                     encode_plain(part.substr(first, last - first),
                                  static_cast<uint32_t>(begin + first), *scratch, tokens);
                   });
  });
}

std::string MetaspaceTokenizer::decode(std::span<const int32_t> ids,
                                       bool skip_special_tokens) const {
  std::string text;
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string piece = token_text(id);  // throws for an unknown id
    if (skip_special_tokens && is_control(id)) continue;
    if (const int byte = parse_byte(piece); byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    append_byte_run(bytes, text);
    append_with_spaces(piece, text);
  }
  append_byte_run(bytes, text);
  const auto first = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(std::min<size_t>(first, static_cast<size_t>(rules_.stripped_spaces)));
}

}  // namespace fastsft
