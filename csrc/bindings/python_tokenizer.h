#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft::bindings {

// A Hugging Face tokenizer object as FastChat uses it: `tokenizer(text).input_ids` and nothing
// else, so byte ranges are empty and no promises are made. The GIL must be held.
class PythonTokenizer : public Tokenizer {
 public:
  explicit PythonTokenizer(pybind11::object tokenizer);

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
  bool legacy() const override;
  bool prefixes_every_part() const override { return false; }
  bool cuts_before_spaces() const override { return false; }

 private:
  std::vector<int32_t> call(std::string_view text) const;
  int32_t id_of(const char* attribute) const;

  pybind11::object tokenizer_;
  NamedIds named_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
};

}  // namespace fastsft::bindings
