#include "tokenizer/byte_level/byte_level_tokenizer.h"

#include <algorithm>
#include <type_traits>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/byte_level/byte_alphabet.h"
#include "tokenizer/files/unsupported_tokenizer.h"
#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

std::vector<AddedToken> normalize_added(const JsonVocabulary& vocabulary, bool nfc) {
  std::vector<AddedToken> tokens;
  NormalizedText normalized;
  for (const auto& [id, token] : vocabulary.added()) {
    if (!token.normalized) continue;
    tokens.push_back(token);
    if (nfc && normalize_nfc(token.text, normalized)) tokens.back().text = normalized.text;
  }
  // If normalization made tokens equal, the special token is used.
  std::stable_partition(tokens.begin(), tokens.end(), [](auto& token) { return token.special; });
  return tokens;
}

// Replaces each sequence of bytes that cannot be part of a valid character by one U+FFFD, as Rust
// does.
std::string replace_invalid(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t valid = std::min(find_invalid_utf8(bytes), bytes.size());
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    text += "\uFFFD";
    bytes.remove_prefix(broken_utf8_size(bytes));
  }
  return text;
}

// Applies `moved` to every token's range from index `first` on. Does nothing for tokens without
// ranges.
template <typename Output, typename Move>
void move_ranges(std::vector<Output>& tokens, size_t first, const Move& moved) {
  if constexpr (std::is_same_v<Output, Token>) {
    for (size_t i = first; i < tokens.size(); ++i) {
      tokens[i].begin = moved(tokens[i].begin);
      tokens[i].end = moved(tokens[i].end);
    }
  }
}

}  // namespace

ByteLevelTokenizer::ByteLevelTokenizer(const TokenizerJson& json,
                                       const JsonTokenizerSettings& settings)
    : VocabularyTokenizer(json, settings),
      rules_(parse_byte_level_rules(json, settings)),
      normalized_added_(normalize_added(vocabulary(), rules_.normalizes_nfc)),
      original_matcher_(list_unnormalized()),
      normalized_matcher_(pointers_to(normalized_added_)),
      bpe_(json, rules_.pattern, rules_.ignores_merges),
      scratch_([this] { return std::make_unique<Scratch>(bpe_); }),
      parts_are_alone_(!rules_.normalizes_nfc || normalized_matcher_.empty()) {}

template <typename Output>
void ByteLevelTokenizer::encode_plain(std::string_view text, uint32_t offset, Scratch& scratch,
                                      std::vector<Output>& tokens) const {
  if (text.empty()) return;
  if (!rules_.adds_prefix_space || text[0] == ' ') {
    return bpe_.encode(text, offset, scratch.bpe, tokens);
  }
  const size_t first = tokens.size();
  scratch.prefixed.assign(1, ' ').append(text);
  bpe_.encode(scratch.prefixed, 0, scratch.bpe, tokens);
  move_ranges(tokens, first, [&](uint32_t at) { return offset + std::max(at, 1u) - 1; });
}

template <typename Output>
void ByteLevelTokenizer::encode_normalized(std::string_view text, uint32_t offset,
                                           SpecialText specials, Scratch& scratch,
                                           std::vector<Output>& tokens) const {
  encode_between(normalized_matcher_, text, offset, specials, tokens,
                 [&](size_t begin, size_t end) {
                   encode_plain(text.substr(begin, end - begin), offset + begin, scratch, tokens);
                 });
}

template <typename Output>
void ByteLevelTokenizer::encode_into(std::string_view text, SpecialText specials,
                                     std::vector<Output>& tokens) const {
  require(text.size() < kMaxText, "a text of ", text.size(), " bytes is too long to tokenize");
  const typename ScratchPool<Scratch>::Borrowed scratch(scratch_);
  encode_between(original_matcher_, text, 0, specials, tokens, [&](size_t begin, size_t end) {
    const std::string_view part = text.substr(begin, end - begin);
    const auto offset = static_cast<uint32_t>(begin);
    if (!rules_.normalizes_nfc || !normalize_nfc(part, scratch->normalized)) {
      return encode_normalized(part, offset, specials, *scratch, tokens);
    }
    const size_t first = tokens.size();
    encode_normalized(scratch->normalized.text, 0, specials, *scratch, tokens);
    move_ranges(tokens, first, [&](uint32_t at) {
      return offset + static_cast<uint32_t>(scratch->normalized.original(at));
    });
  });
}

template void ByteLevelTokenizer::encode_into(std::string_view, SpecialText,
                                              std::vector<Token>&) const;
template void ByteLevelTokenizer::encode_into(std::string_view, SpecialText,
                                              std::vector<int32_t>&) const;

std::string ByteLevelTokenizer::decode(std::span<const int32_t> ids,
                                       bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string text = token_text(id);  // throws for an unknown id
    if (skip_special_tokens && is_control(id)) continue;
    bytes += piece_to_bytes(text).value_or(text);
  }
  return replace_invalid(bytes);
}

}  // namespace fastsft
