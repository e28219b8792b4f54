#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added_matcher.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/byte_level_rules.h"
#include "tokenizer/json_vocabulary.h"
#include "tokenizer/nfc.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/scratch_pool.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// What stands beside tokenizer.json: in tokenizer_config.json, or in a tokenizer object.
struct JsonTokenizerSettings {
  std::vector<AddedToken> added;  // that come to those of the file; their ids are not read
  // Texts of the named tokens; "" for none. One that is no token yet is added.
  std::string bos, eos, unk, pad;
  std::optional<bool> add_prefix_space;  // instead of the file's
  bool legacy = true;
};

// Byte-level BPE from a tokenizer.json (GPT-2, Llama 3, Qwen 2 and 3): the ids of `tokenizers`.
class ByteLevelTokenizer : public Tokenizer {
 public:
  // Throws NotNative when fastsft does not reproduce what the file says.
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

  int32_t vocab_size() const override { return vocabulary_.size(); }
  std::string token_text(int32_t id) const override;
  int32_t find_token(std::string_view text) const override { return vocabulary_.find_id(text); }
  NamedIds named() const override { return named_; }
  bool adds_bos() const override { return adds_bos_; }
  bool adds_eos() const override { return adds_eos_; }
  bool is_special(int32_t id) const override { return vocabulary_.added().contains(id); }
  bool legacy() const override { return legacy_; }
  bool prefixes_every_part() const override { return parts_are_alone_; }
  // A run of white space can join over a newline.
  bool cuts_before_spaces() const override { return false; }

  // For tests: without special instructions of the processor.
  void use_portable_code() { bpe_.set_classifier(classify_bytes); }

 private:
  struct Scratch {
    explicit Scratch(const ByteLevelBpe& bpe) : bpe(bpe) {}
    ByteLevelBpe::Scratch bpe;
    NormalizedText normalized;
    std::string prefixed;
  };

  void set_named(const JsonTokenizerSettings& settings);
  void set_added_around(const AddedAround& around);
  template <typename Output>
  void encode_into(std::string_view text, SpecialText specials, std::vector<Output>& tokens) const;
  template <typename Output>
  void encode_original(std::string_view text, uint32_t offset, SpecialText specials,
                       Scratch& scratch, std::vector<Output>& tokens) const;
  template <typename Output>
  void encode_normalized(std::string_view text, uint32_t offset, SpecialText specials,
                         Scratch& scratch, std::vector<Output>& tokens) const;
  template <typename Output>
  void encode_plain(std::string_view text, uint32_t offset, Scratch& scratch,
                    std::vector<Output>& tokens) const;

  ByteLevelRules rules_;
  JsonVocabulary vocabulary_;
  std::vector<AddedToken> normalized_added_;  // their texts normalized
  AddedMatcher original_matcher_;
  AddedMatcher normalized_matcher_;
  ByteLevelBpe bpe_;
  ScratchPool<Scratch> scratch_;
  NamedIds named_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  bool legacy_;
  bool parts_are_alone_ = true;
};

}  // namespace fastsft
