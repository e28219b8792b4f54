#pragma once

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft {

// A library's tokenizer: its functions and properties.
struct LibraryCalls {
  // Returns a text's ids and byte ranges, without BOS and EOS. The bool: treat special tokens as
  // plain text.
  std::function<std::vector<std::tuple<int32_t, uint32_t, uint32_t>>(const std::string&, bool)>
      encode;
  std::function<std::string(const std::vector<int32_t>&, bool)> decode;
  std::function<std::string(int32_t)> token_text;  // "" for an unknown id
  std::function<int32_t(const std::string&)> find_token;
  std::set<int32_t> special_ids;
  std::set<int32_t> control_ids;  // special ids whose text can be encoded as plain text
  int32_t vocab_size = 0;
  NamedIds named;
  bool adds_bos = false;
  bool adds_eos = false;
  bool legacy = true;
};

// Makes a tokenizer that a library runs available as a Tokenizer. Bytes outside all ranges from the
// library are given to the next token. The result is as slow as the library.
class LibraryTokenizer : public Tokenizer {
 public:
  explicit LibraryTokenizer(LibraryCalls calls) : calls_(std::move(calls)) {}

  void encode(std::string_view text, SpecialText specials,
              std::vector<Token>& tokens) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;

  int32_t vocab_size() const override { return calls_.vocab_size; }
  std::string token_text(int32_t id) const override;
  int32_t find_token(std::string_view text) const override {
    return calls_.find_token(std::string(text));
  }
  NamedIds named() const override { return calls_.named; }
  bool adds_bos() const override { return calls_.adds_bos; }
  bool adds_eos() const override { return calls_.adds_eos; }
  bool is_special(int32_t id) const override { return calls_.special_ids.contains(id); }
  bool is_control(int32_t id) const override { return calls_.control_ids.contains(id); }
  bool legacy() const override { return calls_.legacy; }
  bool prefixes_every_part() const override { return false; }
  bool cuts_before_spaces() const override { return false; }

 private:
  LibraryCalls calls_;
};

}  // namespace fastsft
