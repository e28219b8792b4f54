#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/sentencepiece/sentencepiece_bpe.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// A LlamaTokenizer's settings, without the vocabulary.
struct LlamaSettings {
  bool legacy = true;
  bool add_prefix_space = true;  // used in non-legacy mode only
  bool add_bos = true;
  bool add_eos = false;
  std::vector<AddedToken> added;  // all tokens that are searched for in a text
  std::set<int32_t> special_ids;  // bos, eos, unk, pad, ...: Hugging Face's all_special_ids
  std::set<int32_t> spaced_ids;   // added tokens that `decode` surrounds with spaces
  NamedIds named;
};

// Gives the same ids as the slow LlamaTokenizer in transformers 4.57 (tokenization_llama.py,
// tokenization_utils.py). Legacy mode: text between special tokens is encoded by itself, with
// SentencePiece's prefix space. Non-legacy mode: the whole text gets one prefix space, parts after
// a special token get none, and U+2581 in the text counts as a space.
class LlamaTokenizer : public Tokenizer {
 public:
  // Throws std::invalid_argument if the settings cannot be reproduced exactly.
  LlamaTokenizer(SentencePieceModel model, LlamaSettings settings);

  void encode(std::string_view text, SpecialText specials,
              std::vector<Token>& tokens) const override;
  void encode_ids(std::string_view text, SpecialText specials,
                  std::vector<int32_t>& ids) const override;
  bool encode_segments(std::string_view text, std::span<const ByteSpan> data,
                       std::vector<Token>& tokens) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;

  int32_t vocab_size() const override { return vocab_size_; }
  std::string token_text(int32_t id) const override;
  int32_t find_token(std::string_view text) const override;
  NamedIds named() const override { return settings_.named; }
  bool adds_bos() const override { return settings_.add_bos; }
  bool adds_eos() const override { return settings_.add_eos; }
  bool is_special(int32_t id) const override { return added_texts_.contains(id); }
  bool legacy() const override { return settings_.legacy; }
  bool prefixes_every_part() const override { return settings_.legacy; }
  bool cuts_before_spaces() const override { return bpe_.cuts_before_spaces() && !strips_; }

 private:
  template <typename Output>
  void encode_around(std::string_view text, std::span<const ByteSpan> control,
                     std::vector<Output>& tokens) const;
  template <typename Output>
  void encode_part(std::string_view text, size_t begin, size_t end,
                   SentencePieceBpe::Scratch& scratch, std::vector<Output>& tokens) const;
  template <typename Output>
  void drop_lone_prefix(size_t first, std::vector<Output>& tokens) const;
  std::string decode_between_spaced(std::span<const int32_t> ids) const;
  void check_added(const AddedToken& token) const;
  void check_ids_of_added() const;

  SentencePieceBpe bpe_;
  LlamaSettings settings_;
  AddedMatcher special_;
  std::map<int32_t, std::string> added_texts_;
  bool strips_ = false;  // an added token includes white space next to it
  int32_t vocab_size_ = 0;
  int32_t space_id_ = 0;  // id of the piece U+2581
};

}  // namespace fastsft
