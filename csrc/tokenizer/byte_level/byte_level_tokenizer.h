#pragma once

#include <string>
#include <vector>

#include "tokenizer/bpe/scratch_pool.h"
#include "tokenizer/byte_level/byte_level_bpe.h"
#include "tokenizer/byte_level/split_pattern.h"
#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/unicode/nfc.h"
#include "tokenizer/vocabulary_tokenizer.h"

namespace fastsft {

// How a byte-level tokenizer.json treats a text before its merges.
struct ByteLevelRules {
  SplitPattern pattern = SplitPattern::kGpt2;
  bool adds_prefix_space = false;
  bool normalizes_nfc = false;
  bool ignores_merges = false;
};

// Throws UnsupportedTokenizer for anything that is not known exactly.
ByteLevelRules parse_byte_level_rules(const TokenizerJson& json,
                                      const JsonTokenizerSettings& settings);

// Byte-level BPE from a tokenizer.json (GPT-2, Llama 3, Qwen 2 and 3): the ids of `tokenizers`.
class ByteLevelTokenizer : public VocabularyTokenizer {
 public:
  // Throws UnsupportedTokenizer when fastsft does not reproduce what the file says.
  ByteLevelTokenizer(const TokenizerJson& json, const JsonTokenizerSettings& settings);

  void encode(std::string_view text, SpecialText specials,
              std::vector<Token>& tokens) const override {
    encode_into(text, specials, tokens);
  }
  void encode_ids(std::string_view text, SpecialText specials,
                  std::vector<int32_t>& ids) const override {
    encode_into(text, specials, ids);
  }
  // As ByteLevel's decoder: bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;

  bool prefixes_every_part() const override { return parts_are_alone_; }
  // A run of white space can join over a newline.
  bool cuts_before_spaces() const override { return false; }

  // For tests: without special instructions of the processor.
  void use_portable_code() { bpe_.set_classifier(byte_classifier(/*portable=*/true)); }

 private:
  struct Scratch {
    explicit Scratch(const ByteLevelBpe& bpe) : bpe(bpe) {}
    ByteLevelBpe::Scratch bpe;
    NormalizedText normalized;
    std::string prefixed;
  };

  template <typename Output>
  void encode_into(std::string_view text, SpecialText specials, std::vector<Output>& tokens) const;
  template <typename Output>
  void encode_normalized(std::string_view text, uint32_t offset, SpecialText specials,
                         Scratch& scratch, std::vector<Output>& tokens) const;
  template <typename Output>
  void encode_plain(std::string_view text, uint32_t offset, Scratch& scratch,
                    std::vector<Output>& tokens) const;

  ByteLevelRules rules_;
  std::vector<AddedToken> normalized_added_;  // their texts normalized
  AddedMatcher original_matcher_;
  AddedMatcher normalized_matcher_;
  ByteLevelBpe bpe_;
  ScratchPool<Scratch> scratch_;
  bool parts_are_alone_;
};

}  // namespace fastsft
