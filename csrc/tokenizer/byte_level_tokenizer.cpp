#include "tokenizer/byte_level_tokenizer.h"

#include <algorithm>
#include <type_traits>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/not_native.h"
#include "tokenizer/unicode.h"

namespace fastsft {
namespace {

constexpr size_t kMaxText = UINT32_MAX;
constexpr size_t kMaxAddedText = 512;  // a search is as slow as the longest of them

ByteLevelRules make_rules(const TokenizerJson& json, const JsonTokenizerSettings& settings) {
  ByteLevelRules rules = parse_byte_level_rules(json);
  const bool is_read = json.pre_tokenizer.value("type", std::string()) == "ByteLevel";
  if (is_read && settings.add_prefix_space) rules.adds_prefix_space = *settings.add_prefix_space;
  return rules;
}

// The named tokens that are no tokens yet become added ones.
std::vector<AddedToken> list_more(const JsonTokenizerSettings& settings) {
  std::vector<AddedToken> more = settings.added;
  for (const auto& text : {settings.bos, settings.eos, settings.unk, settings.pad}) {
    const auto is_text = [&](const AddedToken& token) { return token.text == text; };
    if (text.empty() || std::any_of(more.begin(), more.end(), is_text)) continue;
    AddedToken token;
    token.text = text;
    more.push_back(std::move(token));
  }
  return more;
}

std::vector<AddedToken> normalize_added(const JsonVocabulary& vocabulary, bool nfc) {
  std::vector<AddedToken> tokens;
  NormalizedText normalized;
  for (const auto& [id, token] : vocabulary.added()) {
    if (!token.normalized) continue;
    tokens.push_back(token);
    if (nfc && normalize_nfc(token.text, normalized)) tokens.back().text = normalized.text;
  }
  // Of tokens that have become equal the special one counts.
  std::stable_partition(tokens.begin(), tokens.end(), [](auto& token) { return token.special; });
  return tokens;
}

std::vector<const AddedToken*> list_pointers(const std::vector<AddedToken>& tokens) {
  std::vector<const AddedToken*> pointers;
  for (const AddedToken& token : tokens) pointers.push_back(&token);
  return pointers;
}

std::vector<const AddedToken*> list_unnormalized(const JsonVocabulary& vocabulary) {
  std::vector<const AddedToken*> tokens;
  for (const auto& [id, token] : vocabulary.added()) {
    if (!token.normalized) tokens.push_back(&token);
  }
  return tokens;
}

void check_added(const std::map<int32_t, AddedToken>& added) {
  bool strips_right = false;
  bool begins_with_space = false;
  for (const auto& [id, token] : added) {
    require(find_invalid_utf8(token.text) == std::string_view::npos, "added token ", id,
            " is not UTF-8");
    if (token.text.size() > kMaxAddedText) {
      throw NotNative(concat("an added token of ", token.text.size(), " bytes"));
    }
    strips_right |= token.strips_right;
    begins_with_space |= is_space(decode_char(token.text, 0).code);
  }
  if (strips_right && begins_with_space) {
    throw NotNative("an added token that strips white space beside one that begins with it");
  }
}

// Each piece of bytes that cannot become UTF-8 any more is one U+FFFD, as in Rust.
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

// Where tokens have ranges, `moved` says what becomes of each end from token `first` on.
template <typename Output, typename Move>
void move_ranges(std::vector<Output>& tokens, size_t first, const Move& moved) {
  if constexpr (std::is_same_v<Output, Token>) {
    for (size_t i = first; i < tokens.size(); ++i) {
      tokens[i].begin = moved(tokens[i].begin);
      tokens[i].end = moved(tokens[i].end);
    }
  }
}

template <typename Output>
void push_token(const AddedMatcher::Match& match, uint32_t offset, std::vector<Output>& tokens) {
  if constexpr (std::is_same_v<Output, Token>) {
    tokens.push_back({match.token->id, static_cast<uint32_t>(offset + match.begin),
                      static_cast<uint32_t>(offset + match.end)});
  } else {
    tokens.push_back(match.token->id);
  }
}

}  // namespace

ByteLevelTokenizer::ByteLevelTokenizer(const TokenizerJson& json,
                                       const JsonTokenizerSettings& settings)
    : rules_(make_rules(json, settings)),
      vocabulary_(json, list_more(settings)),
      normalized_added_(normalize_added(vocabulary_, rules_.normalizes_nfc)),
      original_matcher_(list_unnormalized(vocabulary_)),
      normalized_matcher_(list_pointers(normalized_added_)),
      bpe_(json, rules_.pattern, rules_.ignores_merges),
      scratch_([this] { return std::make_unique<Scratch>(bpe_); }),
      legacy_(settings.legacy) {
  check_added(vocabulary_.added());
  set_named(settings);
  set_added_around(parse_post_processor(json.post_processor));
  parts_are_alone_ = !rules_.normalizes_nfc || normalized_matcher_.empty();
}

void ByteLevelTokenizer::set_named(const JsonTokenizerSettings& settings) {
  const auto id_of = [&](const std::string& text) { return text.empty() ? -1 : find_token(text); };
  named_ = {id_of(settings.bos), id_of(settings.eos), id_of(settings.unk), id_of(settings.pad)};
}

// A tokenizer that names no BOS but adds one has that one.
void ByteLevelTokenizer::set_added_around(const AddedAround& around) {
  adds_bos_ = !around.before.empty();
  adds_eos_ = !around.after.empty();
  if (adds_bos_ && named_.bos < 0) named_.bos = around.before[0];
  if (adds_eos_ && named_.eos < 0) named_.eos = around.after[0];
  const bool fits = around.before.size() <= 1 && around.after.size() <= 1 &&
                    (!adds_bos_ || around.before[0] == named_.bos) &&
                    (!adds_eos_ || around.after[0] == named_.eos);
  if (!fits) throw NotNative("a post-processor that adds more than bos_token and eos_token");
}

std::string ByteLevelTokenizer::token_text(int32_t id) const {
  const std::string* text = vocabulary_.find_text(id);
  require(text != nullptr, "token id ", id, " is not in the vocabulary of ", vocab_size(),
          " tokens");
  return *text;
}

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
  AddedMatcher::Cursor cursor;
  size_t at = 0;
  while (const auto match = normalized_matcher_.find_next(text, specials, cursor)) {
    encode_plain(text.substr(at, match->begin - at), offset + at, scratch, tokens);
    push_token(*match, offset, tokens);
    at = match->end;
  }
  encode_plain(text.substr(at), offset + at, scratch, tokens);
}

template <typename Output>
void ByteLevelTokenizer::encode_original(std::string_view text, uint32_t offset,
                                         SpecialText specials, Scratch& scratch,
                                         std::vector<Output>& tokens) const {
  if (!rules_.normalizes_nfc || !normalize_nfc(text, scratch.normalized)) {
    return encode_normalized(text, offset, specials, scratch, tokens);
  }
  const size_t first = tokens.size();
  encode_normalized(scratch.normalized.text, 0, specials, scratch, tokens);
  move_ranges(tokens, first, [&](uint32_t at) {
    return offset + static_cast<uint32_t>(scratch.normalized.original(at));
  });
}

template <typename Output>
void ByteLevelTokenizer::encode_into(std::string_view text, SpecialText specials,
                                     std::vector<Output>& tokens) const {
  require(text.size() < kMaxText, "a text of ", text.size(), " bytes is too long to tokenize");
  const typename ScratchPool<Scratch>::Borrowed scratch(scratch_);
  AddedMatcher::Cursor cursor;
  size_t at = 0;
  while (const auto match = original_matcher_.find_next(text, specials, cursor)) {
    encode_original(text.substr(at, match->begin - at), at, specials, *scratch, tokens);
    push_token(*match, 0, tokens);
    at = match->end;
  }
  encode_original(text.substr(at), at, specials, *scratch, tokens);
}

template void ByteLevelTokenizer::encode_into(std::string_view, SpecialText,
                                              std::vector<Token>&) const;
template void ByteLevelTokenizer::encode_into(std::string_view, SpecialText,
                                              std::vector<int32_t>&) const;

std::string ByteLevelTokenizer::decode(std::span<const int32_t> ids,
                                       bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string text = token_text(id);  // throws for an id that is none
    const auto added = vocabulary_.added().find(id);
    const bool is_special = added != vocabulary_.added().end() && added->second.special;
    if (skip_special_tokens && is_special) continue;
    bytes += piece_to_bytes(text).value_or(text);
  }
  return replace_invalid(bytes);
}

}  // namespace fastsft
