#include "tokenizer/sentencepiece/llama_tokenizer.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/utf8.h"

namespace fastsft {
namespace {

constexpr int32_t kMaxId = 1 << 28;

int32_t id_of(const Token& token) { return token.id; }
int32_t id_of(int32_t id) { return id; }

void append(std::vector<Token>& tokens, int32_t id, size_t begin, size_t end) {
  tokens.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
}
void append(std::vector<int32_t>& ids, int32_t id, size_t, size_t) { ids.push_back(id); }

// As strip_right and strip_left; with `marks` U+2581 counts as the space that it becomes.
std::string_view strip_end(std::string_view text, bool marks) {
  while (marks && (text = strip_right(text)).ends_with(kSpaceMark)) {
    text.remove_suffix(kSpaceMark.size());
  }
  return strip_right(text);
}

std::string_view strip_begin(std::string_view text, bool marks) {
  while (marks && (text = strip_left(text)).starts_with(kSpaceMark)) {
    text.remove_prefix(kSpaceMark.size());
  }
  return strip_left(text);
}

// All of a text, or nothing of it.
ByteSpan searched(std::string_view text, SpecialText specials) {
  const size_t size = specials == SpecialText::kFind ? std::min(text.size(), kMaxText) : 0;
  return {0, static_cast<uint32_t>(size)};
}

}  // namespace

LlamaTokenizer::LlamaTokenizer(SentencePieceModel model, LlamaSettings settings)
    : bpe_(std::move(model)), settings_(std::move(settings)), special_(settings_.added) {
  require(settings_.legacy || bpe_.cuts_before_spaces(),
          "a non-legacy tokenizer whose vocabulary joins words (a piece with U+2581 inside) is not "
          "supported");
  require(!settings_.add_bos || settings_.named.bos >= 0,
          "add_bos_token is set without a bos_token");
  require(!settings_.add_eos || settings_.named.eos >= 0,
          "add_eos_token is set without an eos_token");
  const auto num_pieces = static_cast<int32_t>(bpe_.model().pieces.size());
  vocab_size_ = num_pieces;
  for (const AddedToken& token : special_.tokens()) {
    check_added(token);
    const auto [at, is_new] = added_texts_.emplace(token.id, token.text);
    require(is_new, "special tokens \"", token.text, "\" and \"", at->second, "\" share the id ",
            token.id);
    vocab_size_ += token.id >= num_pieces;
  }
  check_ids_of_added();
  for (int32_t id = 0; id < num_pieces; ++id) {
    if (bpe_.model().pieces[id].text == kSpaceMark) space_id_ = id;
  }
}

void LlamaTokenizer::check_added(const AddedToken& token) const {
  require(token.id >= 0 && token.id < kMaxId, "special token \"", token.text, "\" has the id ",
          token.id, ", which is not possible");
  require(find_invalid_utf8(token.text) == std::string_view::npos, "special token ", token.id,
          " is not UTF-8");
  const bool has_space =
      token.text.find(kSpaceMark) != std::string::npos || token.text.find(' ') != std::string::npos;
  require(settings_.legacy || !has_space, "special token \"", token.text,
          "\" holds a space or U+2581, which is not supported in non-legacy mode");
}

// A piece that is also an added token must have one id: Hugging Face looks ids up by text.
void LlamaTokenizer::check_ids_of_added() const {
  std::map<std::string_view, int32_t> added;
  for (const auto& [id, text] : added_texts_) {
    require(added.emplace(text, id).second, "special token \"", text, "\" has two ids");
  }
  const auto& pieces = bpe_.model().pieces;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const auto found = added.find(pieces[id].text);
    require(found == added.end() || found->second == static_cast<int32_t>(id), "special token \"",
            pieces[id].text, "\" is piece ", id,
            " of the vocabulary, but its id is given as another");
  }
}

std::string LlamaTokenizer::token_text(int32_t id) const {
  if (const auto added = added_texts_.find(id); added != added_texts_.end()) return added->second;
  const auto& pieces = bpe_.model().pieces;
  require(id >= 0 && id < static_cast<int32_t>(pieces.size()), "token id ", id,
          " is not in the vocabulary of ", vocab_size_, " tokens");
  return pieces[id].text;
}

int32_t LlamaTokenizer::find_token(std::string_view text) const {
  for (const auto& [id, added] : added_texts_) {
    if (added == text) return id;
  }
  const auto& pieces = bpe_.model().pieces;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].text == text) return static_cast<int32_t>(id);
  }
  return -1;
}

template <typename Output>
void LlamaTokenizer::encode_part(std::string_view text, size_t begin, size_t end,
                                 SentencePieceBpe::Scratch& scratch,
                                 std::vector<Output>& tokens) const {
  // The space that the tokenizer itself puts in front of a text, or SentencePiece before each part.
  const bool has_own_prefix = begin == 0 && !settings_.legacy && settings_.add_prefix_space;
  if (begin == end && !has_own_prefix) return;
  const bool has_prefix = settings_.legacy ? bpe_.model().add_dummy_prefix : has_own_prefix;
  bpe_.encode(text.substr(begin, end - begin), static_cast<uint32_t>(begin), has_prefix, scratch,
              tokens);
}

// Non-legacy: a lone prefix in front of a special token disappears (LlamaTokenizer.tokenize).
template <typename Output>
void LlamaTokenizer::drop_lone_prefix(size_t first, std::vector<Output>& tokens) const {
  if (settings_.legacy || tokens.size() < first + 2 || id_of(tokens[first]) != space_id_) return;
  if (settings_.special_ids.contains(id_of(tokens[first + 1])))
    tokens.erase(tokens.begin() + first);
}

// Special tokens are found where they are in one span of `control` as a whole.
template <typename Output>
void LlamaTokenizer::encode_around(std::string_view text, std::span<const ByteSpan> control,
                                   std::vector<Output>& tokens) const {
  require(text.size() < kMaxText, "a text of ", text.size(), " bytes is too long to tokenize");
  if (text.empty()) return;
  const SentencePieceBpe::Borrowed scratch(bpe_);
  const size_t first = tokens.size();
  size_t at = 0;
  for (const ByteSpan& span : control) {
    while (const auto match =
               special_.find(text.substr(0, span.end), std::max<size_t>(at, span.begin))) {
      size_t begin = match->begin;
      size_t end = match->end;
      const bool marks = !settings_.legacy;
      if (match->token->strips_left) {
        begin = at + strip_end(text.substr(at, begin - at), marks).size();
      }
      if (match->token->strips_right) {
        end = text.size() - strip_begin(text.substr(end), marks).size();
      }
      encode_part(text, at, begin, *scratch, tokens);
      append(tokens, match->token->id, begin, end);
      at = end;
    }
  }
  if (at < text.size()) encode_part(text, at, text.size(), *scratch, tokens);
  drop_lone_prefix(first, tokens);
}

void LlamaTokenizer::encode(std::string_view text, SpecialText specials,
                            std::vector<Token>& tokens) const {
  const ByteSpan all = searched(text, specials);
  encode_around(text, {&all, 1}, tokens);
}

void LlamaTokenizer::encode_ids(std::string_view text, SpecialText specials,
                                std::vector<int32_t>& ids) const {
  const ByteSpan all = searched(text, specials);
  encode_around(text, {&all, 1}, ids);
}

bool LlamaTokenizer::encode_segments(std::string_view text, std::span<const ByteSpan> data,
                                     std::vector<Token>& tokens) const {
  encode_around(text, complement(data, text.size()), tokens);
  return true;
}

}  // namespace fastsft
