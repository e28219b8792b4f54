#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings/bind.h"
#include "core/start_threads.h"
#include "tokenizer/byte_level/byte_level_tokenizer.h"
#include "tokenizer/files/json_vocabulary.h"
#include "tokenizer/files/tokenizer_files.h"
#include "tokenizer/files/unsupported_tokenizer.h"
#include "tokenizer/library_tokenizer.h"
#include "tokenizer/python_tokenizer.h"
#include "tokenizer/sentencepiece/word_starts.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;
using TextAndOffsets = std::pair<std::vector<int32_t>, std::vector<std::pair<uint32_t, uint32_t>>>;

SpecialText special_text(bool split_special_tokens) {
  return split_special_tokens ? SpecialText::kPlain : SpecialText::kFind;
}

std::vector<int32_t> encode(const Tokenizer& self, const std::string& text, bool as_plain_text) {
  std::vector<int32_t> ids;
  self.encode_ids(text, special_text(as_plain_text), ids);
  return ids;
}

// Returns an array that takes ownership of the list's memory, without a copy.
template <typename T>
py::array_t<T> to_owning_array(std::vector<T> list) {
  auto owner = std::make_unique<std::vector<T>>(std::move(list));
  const py::capsule base(owner.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
  const std::vector<T>* held = owner.release();
  return py::array_t<T>(held->size(), held->data(), base);
}

// Returns views of the UTF-8 of `texts`. Unlike pybind11's string_view caster this does not
// register each str to keep it alive; a tuple is immutable, so its strs outlive a GIL release.
std::vector<std::string_view> view_texts(const py::tuple& texts) {
  std::vector<std::string_view> views;
  views.reserve(texts.size());
  for (const py::handle text : texts) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (bytes == nullptr) throw py::error_already_set();
    views.emplace_back(bytes, static_cast<size_t>(size));
  }
  return views;
}

// Returns all texts' ids end to end, and where each text ends. Arrays avoid a Python object
// per id.
std::pair<py::array_t<int32_t>, py::array_t<int64_t>> encode_flat(
    const Tokenizer& self, const py::typing::List<py::str>& texts, bool as_plain_text) {
  const py::tuple held(texts);
  const std::vector<std::string_view> views = view_texts(held);
  std::vector<int32_t> ids;
  std::vector<int64_t> ends;
  {
    const py::gil_scoped_release release;
    size_t bytes = 0;
    for (const std::string_view text : views) bytes += text.size();
    ids.reserve(bytes / 3);
    ends.reserve(views.size());
    for (const std::string_view text : views) {
      self.encode_ids(text, special_text(as_plain_text), ids);
      ends.push_back(static_cast<int64_t>(ids.size()));
    }
  }
  return {to_owning_array(std::move(ids)), to_owning_array(std::move(ends))};
}

std::vector<std::vector<int32_t>> encode_batch(const Tokenizer& self,
                                               const std::vector<std::string>& texts,
                                               bool as_plain_text) {
  std::vector<std::vector<int32_t>> rows(texts.size());
  parallel_for(texts.size(), 0, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) rows[i] = encode(self, texts[i], as_plain_text);
  });
  return rows;
}

TextAndOffsets encode_with_offsets(const Tokenizer& self, const std::string& text,
                                   bool as_plain_text) {
  std::vector<Token> tokens;
  self.encode(text, special_text(as_plain_text), tokens);
  TextAndOffsets result;
  for (const Token& token : tokens) {
    result.first.push_back(token.id);
    result.second.emplace_back(token.begin, token.end);
  }
  return result;
}

// Returns the masks of each 64-byte block of `data`, computed by mask finder number `finder` of
// this machine (sentencepiece/word_starts.h).
std::vector<std::pair<uint64_t, uint64_t>> byte_masks(size_t finder, std::string_view data) {
  std::vector<ByteMasks> masks(data.size() / 64);
  mask_finders().at(finder)(data.data(), masks.size(), masks.data());
  std::vector<std::pair<uint64_t, uint64_t>> result;
  for (const ByteMasks& each : masks) result.emplace_back(each.spaces, each.leads);
  return result;
}

std::pair<std::shared_ptr<Tokenizer>, TokenizerFiles> load_tokenizer(const std::string& directory) {
  SentencePieceModel model = read_sentencepiece_model(directory + "/tokenizer.model");
  TokenizerFiles files = read_tokenizer_files(directory, model);
  auto tokenizer = std::make_shared<LlamaTokenizer>(std::move(model), files.settings);
  return {std::move(tokenizer), std::move(files)};
}

}  // namespace

void bind_tokenizer(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<NamedIds>(module, "NamedIds")
      .def(py::init<int32_t, int32_t, int32_t, int32_t>(), py::arg("bos") = -1, py::arg("eos") = -1,
           py::arg("unk") = -1, py::arg("pad") = -1)
      .def_readwrite("bos", &NamedIds::bos)
      .def_readwrite("eos", &NamedIds::eos)
      .def_readwrite("unk", &NamedIds::unk)
      .def_readwrite("pad", &NamedIds::pad);
  py::class_<AddedToken>(module, "AddedToken")
      .def(py::init<int32_t, std::string, bool, bool, bool, bool, bool>(), py::arg("id"),
           py::arg("text"), py::arg("strips_left") = false, py::arg("strips_right") = false,
           py::arg("single_word") = false, py::arg("normalized") = false, py::arg("special") = true)
      .def_readonly("id", &AddedToken::id)
      .def_readonly("text", &AddedToken::text)
      .def_readonly("strips_left", &AddedToken::strips_left)
      .def_readonly("strips_right", &AddedToken::strips_right)
      .def_readonly("single_word", &AddedToken::single_word)
      .def_readonly("normalized", &AddedToken::normalized)
      .def_readonly("special", &AddedToken::special);
  py::class_<LlamaSettings>(module, "LlamaSettings")
      .def(py::init<>())
      .def_readwrite("legacy", &LlamaSettings::legacy)
      .def_readwrite("add_prefix_space", &LlamaSettings::add_prefix_space)
      .def_readwrite("add_bos", &LlamaSettings::add_bos)
      .def_readwrite("add_eos", &LlamaSettings::add_eos)
      .def_readwrite("added", &LlamaSettings::added)
      .def_readwrite("special_ids", &LlamaSettings::special_ids)
      .def_readwrite("spaced_ids", &LlamaSettings::spaced_ids)
      .def_readwrite("named", &LlamaSettings::named);
  py::class_<TokenizerFiles>(module, "TokenizerFiles")
      .def_readonly("settings", &TokenizerFiles::settings)
      .def_readonly("model_max_length", &TokenizerFiles::model_max_length)
      .def_readonly("padding_side", &TokenizerFiles::padding_side);
  py::class_<Tokenizer, std::shared_ptr<Tokenizer>>(module, "Tokenizer")
      .def("encode", &encode, py::arg("text"), py::arg("split_special_tokens") = false, release())
      .def("encode_with_offsets", &encode_with_offsets, py::arg("text"),
           py::arg("split_special_tokens") = false, release())
      .def(
          "decode",
          [](const Tokenizer& self, const std::vector<int32_t>& ids, bool skip) {
            return self.decode(ids, skip);
          },
          py::arg("ids"), py::arg("skip_special_tokens") = false, release())
      .def("token_text", &Tokenizer::token_text, py::arg("id"))
      .def("find_token", &Tokenizer::find_token, py::arg("text"))
      .def("is_special", &Tokenizer::is_special, py::arg("id"))
      .def("is_control", &Tokenizer::is_control, py::arg("id"))
      .def_property_readonly("adds_bos", &Tokenizer::adds_bos)
      .def("encode_batch", &encode_batch, py::arg("texts"), py::arg("split_special_tokens") = false,
           release())
      .def("encode_flat", &encode_flat, py::arg("texts"), py::arg("split_special_tokens") = false)
      .def_property_readonly("adds_eos", &Tokenizer::adds_eos)
      .def_property_readonly("legacy", &Tokenizer::legacy)
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size)
      .def_property_readonly("named", &Tokenizer::named);
  py::class_<PythonTokenizer, Tokenizer, std::shared_ptr<PythonTokenizer>>(module,
                                                                           "PythonTokenizer")
      .def(py::init<PythonTokenizer::Encode, std::function<bool()>, NamedIds>(), py::arg("encode"),
           py::arg("legacy"), py::arg("named"));
  module.def(
      "make_llama_tokenizer",
      [](const std::string& vocab_file, LlamaSettings settings) -> std::shared_ptr<Tokenizer> {
        return std::make_shared<LlamaTokenizer>(read_sentencepiece_model(vocab_file),
                                                std::move(settings));
      },
      py::arg("vocab_file"), py::arg("settings"), release());
  module.def("num_mask_finders", [] { return mask_finders().size(); });
  module.def("byte_masks", &byte_masks, py::arg("finder"), py::arg("data"));
  module.def("load_tokenizer", &load_tokenizer, py::arg("directory"), release());
}

namespace {

namespace py = pybind11;

std::shared_ptr<Tokenizer> parse_json_tokenizer(const std::string& text, const std::string& where,
                                                const JsonTokenizerSettings& settings) {
  return make_json_tokenizer(parse_tokenizer_json(text, where), settings);
}

std::shared_ptr<Tokenizer> read_json_tokenizer(const std::string& path,
                                               const JsonTokenizerSettings& settings) {
  return make_json_tokenizer(read_tokenizer_json(path), settings);
}

}  // namespace

void bind_tokenizer_json(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  py::register_exception<UnsupportedTokenizer>(module, "UnsupportedTokenizerError",
                                               PyExc_ValueError);
  py::class_<GivenToken>(module, "GivenToken")
      .def(py::init<AddedToken, bool, bool>(), py::arg("token"), py::arg("replaces_file") = false,
           py::arg("replaces_other") = false)
      .def_readonly("token", &GivenToken::token)
      .def_readonly("replaces_file", &GivenToken::replaces_file)
      .def_readonly("replaces_other", &GivenToken::replaces_other);
  py::class_<JsonTokenizerSettings>(module, "JsonTokenizerSettings")
      .def(py::init<>())
      .def_readwrite("added", &JsonTokenizerSettings::added)
      .def_readwrite("bos", &JsonTokenizerSettings::bos)
      .def_readwrite("eos", &JsonTokenizerSettings::eos)
      .def_readwrite("unk", &JsonTokenizerSettings::unk)
      .def_readwrite("pad", &JsonTokenizerSettings::pad)
      .def_readwrite("add_prefix_space", &JsonTokenizerSettings::add_prefix_space)
      .def_readwrite("adds_bos", &JsonTokenizerSettings::adds_bos)
      .def_readwrite("adds_eos", &JsonTokenizerSettings::adds_eos)
      .def_readwrite("legacy", &JsonTokenizerSettings::legacy);
  py::class_<ByteLevelTokenizer, Tokenizer, std::shared_ptr<ByteLevelTokenizer>>(
      module, "ByteLevelTokenizer")
      .def("use_portable_code", &ByteLevelTokenizer::use_portable_code);
  py::class_<LibraryCalls>(module, "LibraryCalls")
      .def(py::init<>())
      .def_readwrite("encode", &LibraryCalls::encode)
      .def_readwrite("decode", &LibraryCalls::decode)
      .def_readwrite("token_text", &LibraryCalls::token_text)
      .def_readwrite("find_token", &LibraryCalls::find_token)
      .def_readwrite("special_ids", &LibraryCalls::special_ids)
      .def_readwrite("control_ids", &LibraryCalls::control_ids)
      .def_readwrite("vocab_size", &LibraryCalls::vocab_size)
      .def_readwrite("named", &LibraryCalls::named)
      .def_readwrite("adds_bos", &LibraryCalls::adds_bos)
      .def_readwrite("adds_eos", &LibraryCalls::adds_eos)
      .def_readwrite("legacy", &LibraryCalls::legacy);
  py::class_<LibraryTokenizer, Tokenizer, std::shared_ptr<LibraryTokenizer>>(module,
                                                                             "LibraryTokenizer")
      .def(py::init<LibraryCalls>(), py::arg("calls"));
  module.def("parse_json_tokenizer", &parse_json_tokenizer, py::arg("text"), py::arg("where"),
             py::arg("settings"), release());
  module.def("read_json_tokenizer", &read_json_tokenizer, py::arg("path"), py::arg("settings"),
             release());
}

}  // namespace fastsft::bindings
