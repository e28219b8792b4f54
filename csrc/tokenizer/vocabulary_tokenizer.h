#pragma once

#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/files/json_vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// Common base for all tokenizers that are read from a tokenizer.json: the vocabulary, added and
// named tokens, and the tokens added around a text.
class VocabularyTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return vocabulary_.size(); }
  std::string token_text(int32_t id) const override;
  int32_t find_token(std::string_view text) const override { return vocabulary_.find_id(text); }
  NamedIds named() const override { return named_; }
  bool adds_bos() const override { return adds_bos_; }
  bool adds_eos() const override { return adds_eos_; }
  bool is_special(int32_t id) const override { return vocabulary_.added().contains(id); }
  // True for the same tokens that `decode` leaves out with skip_special_tokens.
  bool is_control(int32_t id) const override;
  bool legacy() const override { return legacy_; }

 protected:
  // Throws UnsupportedTokenizer if fastsft does not reproduce the file's settings for these parts.
  VocabularyTokenizer(const TokenizerJson& json, const JsonTokenizerSettings& settings);

  const JsonVocabulary& vocabulary() const { return vocabulary_; }
  // Returns the added tokens that are searched for in the unchanged text.
  std::vector<const AddedToken*> list_unnormalized() const;

  // Appends the matches in `text` to `tokens` and calls `encode_part(begin, end)` for the text
  // before, between and after them. `offset`: position of the text's first byte, for the byte
  // ranges.
  template <typename Output, typename EncodePart>
  static void encode_between(const AddedMatcher& matcher, std::string_view text, uint32_t offset,
                             SpecialText specials, std::vector<Output>& tokens,
                             const EncodePart& encode_part);

 private:
  void set_added_around(const Json& post_processor, const JsonTokenizerSettings& settings);

  JsonVocabulary vocabulary_;
  NamedIds named_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  bool legacy_;
};

template <typename Output, typename EncodePart>
void VocabularyTokenizer::encode_between(const AddedMatcher& matcher, std::string_view text,
                                         uint32_t offset, SpecialText specials,
                                         std::vector<Output>& tokens,
                                         const EncodePart& encode_part) {
  AddedMatcher::Cursor cursor;
  size_t at = 0;
  while (const auto match = matcher.find_next(text, specials, cursor)) {
    encode_part(at, match->begin);
    if constexpr (std::is_same_v<Output, Token>) {
      tokens.push_back({match->token->id, static_cast<uint32_t>(offset + match->begin),
                        static_cast<uint32_t>(offset + match->end)});
    } else {
      tokens.push_back(match->token->id);
    }
    at = match->end;
  }
  encode_part(at, text.size());
}

}  // namespace fastsft
