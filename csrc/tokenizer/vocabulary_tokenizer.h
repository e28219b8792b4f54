#pragma once

#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/files/json_vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// What all tokenizers of a tokenizer.json have in common: the vocabulary, added and named tokens,
// and what is put around a text.
class VocabularyTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return vocabulary_.size(); }
  std::string token_text(int32_t id) const override;
  int32_t find_token(std::string_view text) const override { return vocabulary_.find_id(text); }
  NamedIds named() const override { return named_; }
  bool adds_bos() const override { return adds_bos_; }
  bool adds_eos() const override { return adds_eos_; }
  bool is_special(int32_t id) const override { return vocabulary_.added().contains(id); }
  bool is_control(int32_t id) const override;  // what `decode` leaves out, too, when it is asked to
  bool legacy() const override { return legacy_; }

 protected:
  // Throws UnsupportedTokenizer when fastsft does not reproduce what the file says about them.
  VocabularyTokenizer(const TokenizerJson& json, const JsonTokenizerSettings& settings);

  const JsonVocabulary& vocabulary() const { return vocabulary_; }
  // Added tokens that are looked for in the text as it is.
  std::vector<const AddedToken*> list_unnormalized() const;

  // Calls `encode_part(begin, end)` for what is between the matches in `text`, and appends these
  // to `tokens`; `offset` is that of the text.
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
