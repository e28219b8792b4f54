#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

size_t skip_spaces_back(std::string_view text, size_t at, size_t stop) {
  while (at > stop) {
    const size_t before = char_begin_before(text, at);
    if (!is_space(decode_char(text, before).code)) break;
    at = before;
  }
  return at;
}

size_t skip_spaces(std::string_view text, size_t at) {
  while (at < text.size()) {
    const DecodedChar c = decode_char(text, at);
    if (!is_space(c.code)) break;
    at += c.size;
  }
  return at;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const auto is_word = [&](size_t at) { return word_chars()[decode_char(text, at).code] != 0; };
  const bool touches_left = begin > 0 && is_word(char_begin_before(text, begin));
  return !touches_left && (end == text.size() || !is_word(end));
}

}  // namespace

std::vector<const AddedToken*> pointers_to(const std::vector<AddedToken>& tokens) {
  std::vector<const AddedToken*> pointers;
  for (const AddedToken& token : tokens) pointers.push_back(&token);
  return pointers;
}

AddedMatcher::AddedMatcher(const std::vector<const AddedToken*>& tokens) {
  for (const AddedToken* token : tokens) add(token);
  if (std::count(begins_.begin(), begins_.end(), true) == 1) only_begin_ = tokens[0]->text[0];
}

void AddedMatcher::add(const AddedToken* token) {
  begins_[static_cast<uint8_t>(token->text[0])] = true;
  uint32_t node = 0;
  for (const char byte : token->text) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(byte);
    const auto [at, is_new] = edges_.emplace(edge, static_cast<uint32_t>(nodes_.size()));
    if (is_new) nodes_.emplace_back();
    node = at->second;
  }
  if (nodes_[node].token == nullptr) nodes_[node].token = token;
}

const AddedToken* AddedMatcher::find_longest(std::string_view text, size_t at) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  for (; at < text.size(); ++at) {
    const auto next = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[at]));
    if (next == edges_.end()) break;
    node = next->second;
    if (nodes_[node].token != nullptr) longest = nodes_[node].token;
  }
  return longest;
}

std::optional<AddedMatcher::Match> AddedMatcher::find_text(std::string_view text,
                                                           size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (only_begin_) {
      at = text.find(*only_begin_, at);
      if (at == std::string_view::npos) break;
    } else if (!begins_[static_cast<uint8_t>(text[at])]) {
      continue;
    }
    if (const AddedToken* token = find_longest(text, at)) {
      return Match{at, at + token->text.size(), token};
    }
  }
  return std::nullopt;
}

std::optional<AddedMatcher::Match> AddedMatcher::find_next(std::string_view text,
                                                           SpecialText specials,
                                                           Cursor& cursor) const {
  if (empty()) return std::nullopt;
  while (auto match = find_text(text, cursor.searched)) {
    cursor.searched = match->end;
    const AddedToken& token = *match->token;
    if (specials == SpecialText::kPlain && token.special) continue;
    if (token.single_word && !stands_alone(text, match->begin, match->end)) continue;
    if (token.strips_left) match->begin = skip_spaces_back(text, match->begin, cursor.done);
    if (token.strips_right) match->end = skip_spaces(text, match->end);
    cursor.done = match->end;
    return match;
  }
  cursor.searched = text.size();
  return std::nullopt;
}

}  // namespace fastsft
