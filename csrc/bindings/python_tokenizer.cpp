#include "bindings/python_tokenizer.h"

#include <pybind11/stl.h>

#include "core/error.h"

namespace fastsft::bindings {

namespace py = pybind11;

PythonTokenizer::PythonTokenizer(py::object tokenizer) : tokenizer_(std::move(tokenizer)) {
  named_ = {id_of("bos_token_id"), id_of("eos_token_id"), id_of("unk_token_id"),
            id_of("pad_token_id")};
  const std::vector<int32_t> added = call("");
  using Ids = std::vector<int32_t>;
  adds_bos_ = named_.bos >= 0 && (added == Ids{named_.bos} || added == Ids{named_.bos, named_.eos});
  adds_eos_ = named_.eos >= 0 && (added == Ids{named_.eos} || added == Ids{named_.bos, named_.eos});
  adds_eos_ = adds_eos_ && !(added.size() == 1 && adds_bos_);
}

int32_t PythonTokenizer::id_of(const char* attribute) const {
  const py::object id = py::getattr(tokenizer_, attribute, py::none());
  return id.is_none() ? -1 : id.cast<int32_t>();
}

std::vector<int32_t> PythonTokenizer::call(std::string_view text) const {
  return tokenizer_(py::str(text.data(), text.size()))
      .attr("input_ids")
      .cast<std::vector<int32_t>>();
}

void PythonTokenizer::encode(std::string_view text, SpecialText specials,
                             std::vector<Token>& tokens) const {
  require(specials == SpecialText::kFind, "a tokenizer object finds special tokens by itself");
  const std::vector<int32_t> ids = call(text);
  const size_t first = adds_bos_;
  for (size_t i = first; i + adds_eos_ < ids.size(); ++i) tokens.push_back({ids[i], 0, 0});
}

std::string PythonTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  const std::vector<int32_t> list(ids.begin(), ids.end());
  return tokenizer_.attr("decode")(list, py::arg("skip_special_tokens") = skip_special_tokens)
      .cast<std::string>();
}

int32_t PythonTokenizer::vocab_size() const { return static_cast<int32_t>(py::len(tokenizer_)); }

std::string PythonTokenizer::token_text(int32_t id) const {
  return tokenizer_.attr("convert_ids_to_tokens")(id).cast<std::string>();
}

int32_t PythonTokenizer::find_token(std::string_view text) const {
  const py::str name(text.data(), text.size());
  return tokenizer_.attr("convert_tokens_to_ids")(name).cast<int32_t>();
}

bool PythonTokenizer::legacy() const { return tokenizer_.attr("legacy").cast<bool>(); }

}  // namespace fastsft::bindings
