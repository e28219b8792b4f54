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

// The steps that a byte-level tokenizer.json applies to a text before the merges.
struct ByteLevelRules {
  SplitPattern pattern = SplitPattern::kGpt2;
  bool adds_prefix_space = false;
  bool normalizes_nfc = false;
  bool ignores_merges = false;
};

// Parses the rules. Throws UnsupportedTokenizer for any setting that fastsft does not reproduce
// exactly.
ByteLevelRules parse_byte_level_rules(const TokenizerJson& json,
                                      const JsonTokenizerSettings& settings);

// Byte-level BPE from a tokenizer.json (GPT-2, Llama 3, Qwen 2 and 3), with the same ids as
// `tokenizers`.
class ByteLevelTokenizer : public VocabularyTokenizer {
 public:
  // Throws UnsupportedTokenizer if fastsft does not reproduce the file's settings.
  ByteLevelTokenizer(const TokenizerJson& json, const JsonTokenizerSettings& settings);

  void encode(std::string_view text, SpecialText specials,
              std::vector<Token>& tokens) const override {
    encode_into(text, specials, tokens);
  }
  void encode_ids(std::string_view text, SpecialText specials,
                  std::vector<int32_t>& ids) const override {
    encode_into(text, specials, ids);
  }
  // Decodes like the ByteLevel decoder: bytes that are not valid UTF-8 become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;

  bool prefixes_every_part() const override { return parts_are_alone_; }
  // White space can merge across a newline.
  bool cuts_before_spaces() const override { return false; }

  // Uses code without vector instructions, for tests.
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
  std::vector<AddedToken> normalized_added_;  // added tokens with normalized texts
  AddedMatcher original_matcher_;
  AddedMatcher normalized_matcher_;
  ByteLevelBpe bpe_;
  ScratchPool<Scratch> scratch_;
  bool parts_are_alone_;
};

}  // namespace fastsft
