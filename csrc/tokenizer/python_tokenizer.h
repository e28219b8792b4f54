#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft {

// A tokenizer from other code that can only turn a text into ids, BOS and EOS included. Its byte
// ranges are empty, and it makes no guarantees. If `encode` needs it, calls run one thread at a
// time.
class PythonTokenizer : public Tokenizer {
 public:
  using Encode = std::function<std::vector<int32_t>(const std::string&)>;

  PythonTokenizer(Encode encode, std::function<bool()> legacy, NamedIds named);

  void encode(std::string_view text, SpecialText specials,
              std::vector<Token>& tokens) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  int32_t vocab_size() const override;
  std::string token_text(int32_t id) const override;
  int32_t find_token(std::string_view text) const override;
  NamedIds named() const override { return named_; }
  bool adds_bos() const override { return adds_bos_; }
  bool adds_eos() const override { return adds_eos_; }
  bool is_special(int32_t) const override { return false; }
  bool legacy() const override { return legacy_(); }
  bool prefixes_every_part() const override { return false; }
  bool cuts_before_spaces() const override { return false; }

 private:
  Encode encode_;
  std::function<bool()> legacy_;
  NamedIds named_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
};

}  // namespace fastsft
