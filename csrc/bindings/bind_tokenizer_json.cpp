#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "tokenizer/byte_level/byte_level_tokenizer.h"
#include "tokenizer/files/json_tokenizer.h"
#include "tokenizer/files/not_native.h"
#include "tokenizer/library_tokenizer.h"

namespace fastsft::bindings {
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
  py::register_exception<NotNative>(module, "NotNativeError", PyExc_ValueError);
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
