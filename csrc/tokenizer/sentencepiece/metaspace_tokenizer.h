#pragma once

#include <string>
#include <vector>

#include "tokenizer/sentencepiece/metaspace_rules.h"
#include "tokenizer/sentencepiece/sentencepiece_bpe.h"
#include "tokenizer/vocabulary_tokenizer.h"

namespace fastsft {

// BPE from a tokenizer.json that writes U+2581 for a space (Llama 2, Mistral), with the same ids as
// `tokenizers`. The file's merge order counts, not scores.
class MetaspaceTokenizer : public VocabularyTokenizer {
 public:
  // Throws UnsupportedTokenizer if fastsft does not reproduce the file's settings.
  MetaspaceTokenizer(const TokenizerJson& json, const JsonTokenizerSettings& settings);

  void encode(std::string_view text, SpecialText specials,
              std::vector<Token>& tokens) const override {
    encode_into(text, specials, tokens);
  }
  void encode_ids(std::string_view text, SpecialText specials,
                  std::vector<int32_t>& ids) const override {
    encode_into(text, specials, ids);
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;

  bool prefixes_every_part() const override {
    return rules_.prefix != PrefixRule::kFirstUnlessSpace;
  }
  bool cuts_before_spaces() const override { return bpe_.cuts_before_spaces() && !strips_; }

 private:
  template <typename Output>
  void encode_into(std::string_view text, SpecialText specials, std::vector<Output>& tokens) const;
  template <typename Output>
  void encode_plain(std::string_view text, uint32_t offset, SentencePieceBpe::Scratch& scratch,
                    std::vector<Output>& tokens) const;

  MetaspaceRules rules_;
  bool strips_ = false;  // an added token includes white space next to it
  std::vector<AddedToken> normalized_added_;
  AddedMatcher original_matcher_;
  AddedMatcher normalized_matcher_;
  SentencePieceBpe bpe_;
};

}  // namespace fastsft
