#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "bindings/bind.h"
#include "bindings/data_inputs.h"
#include "chat/conversation.h"
#include "chat/mark_names.h"
#include "chat/record_splitter.h"
#include "core/error.h"
#include "core/json_text.h"
#include "data/input_walk.h"
#include "data/label_data.h"
#include "data/token_cache.h"
#include "data/token_cache_writer.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

// Reads conversations from a Python sequence of message lists, with the same result as RecordParser
// on JSON. The GIL must be held.
class PythonListReader {
 public:
  // Returns false if a value has an unsupported type (supported: lists and tuples of dicts, str
  // without lone surrogates, None, bool, int, float), so that the caller falls back to the JSON
  // path, or if a Python exception is set.
  bool read(py::handle sources, std::vector<Conversation>& conversations) {
    const auto list = as_list(sources);
    if (!list) return false;
    conversations.resize(PySequence_Fast_GET_SIZE(list.ptr()));
    for (size_t i = 0; i < conversations.size(); ++i) {
      conversations[i].number = static_cast<int64_t>(i);
      if (!read_conversation(PySequence_Fast_GET_ITEM(list.ptr(), i), conversations[i]))
        return false;
    }
    return true;
  }

 private:
  // Returns the object if it is a list or a tuple, otherwise a null object.
  static py::object as_list(py::handle object) {
    if (!PyList_CheckExact(object.ptr()) && !PyTuple_CheckExact(object.ptr())) return {};
    return py::reinterpret_borrow<py::object>(object);
  }

  bool read_conversation(py::handle source, Conversation& conversation) {
    const auto list = as_list(source);
    if (!list) return false;
    const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr()));
    conversation.messages_empty = count == 0;
    conversation.messages.resize(count);
    for (size_t i = 0; i < count; ++i) {
      if (!read_message(PySequence_Fast_GET_ITEM(list.ptr(), i), conversation.messages[i]))
        return false;
    }
    return true;
  }

  // Reads a dict with "from" and "value". Returns false without "from", and if another field has a
  // meaning of its own.
  bool read_message(PyObject* source, Message& message) {
    if (!PyDict_CheckExact(source) || (PyDict_GET_SIZE(source) > 2 && !is_plain(source))) {
      return false;
    }
    for (const py::str& name : others_) {
      if (PyDict_GetItemWithError(source, name.ptr()) != nullptr) return false;
    }
    PyObject* from = PyDict_GetItemWithError(source, from_.ptr());
    if (from == nullptr) return false;  // the message's fields are described from JSON
    return read_value(from, message.from) &&
           read_value(PyDict_GetItemWithError(source, value_.ptr()), message.value) &&
           PyErr_Occurred() == nullptr;
  }

  // Returns true if no field of the message can mark it as not learned.
  bool is_plain(PyObject* source) {
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(source, &at, &name, &value) != 0;) {
      if (PyDict_CheckExact(value)) return false;  // a nested field may be a mark
      if (PyLong_CheckExact(name)) continue;       // numbers as names cannot be marks
      if (!PyUnicode_CheckExact(name)) return false;
      if (PySet_Contains(plain_.ptr(), name) == 1) continue;
      Value text;
      if (!read_text(name, text) || find_mark_name(text.text) != MarkName::kNone) return false;
      if (PySet_GET_SIZE(plain_.ptr()) < 1000) PySet_Add(plain_.ptr(), name);
    }
    return true;
  }

  static bool read_value(PyObject* source, Value& value) {
    if (source == nullptr) return true;
    if (PyUnicode_CheckExact(source)) return read_text(source, value);
    if (source == Py_None) {
      value.kind = ValueKind::kNull;
    } else if (PyBool_Check(source)) {
      value.kind = source == Py_True ? ValueKind::kTrue : ValueKind::kFalse;
    } else if (PyLong_CheckExact(source) || PyFloat_CheckExact(source)) {
      value.kind = ValueKind::kNumber;
    } else {
      return false;
    }
    value.is_true = PyObject_IsTrue(source) == 1;
    return true;
  }

  // Reads a str. ASCII text is copied from the object directly. Other text is encoded separately,
  // since PyUnicode_AsUTF8 would keep a second copy inside the object.
  static bool read_text(PyObject* source, Value& value) {
    value.kind = ValueKind::kString;
    if (PyUnicode_IS_COMPACT_ASCII(source)) {
      const auto* bytes = static_cast<const char*>(PyUnicode_DATA(source));
      value.text.assign(bytes, static_cast<size_t>(PyUnicode_GET_LENGTH(source)));
    } else {
      const auto encoded = py::reinterpret_steal<py::bytes>(PyUnicode_AsUTF8String(source));
      if (!encoded) {
        PyErr_Clear();
        return false;
      }
      value.text = static_cast<std::string_view>(encoded);
    }
    value.is_true = !value.text.empty();
    return true;
  }

  const py::str from_{"from"};
  const py::str value_{"value"};
  const py::str others_[4] = {py::str("role"), py::str("content"), py::str("tool_calls"),
                              py::str("function_call")};
  py::set plain_;  // names known not to be marks
};
using Read = std::function<py::bytes(size_t)>;
using PollFunction = std::function<void(int64_t, int64_t)>;

// A byte source that calls a Python function. `read` may be called on any thread.
class PythonSource : public ByteSource {
 public:
  explicit PythonSource(Read read) : read_(std::move(read)) {}
  ~PythonSource() override {
    const py::gil_scoped_acquire held;
    read_ = nullptr;
  }

  size_t read(std::span<char> to) override {
    const py::gil_scoped_acquire held;
    const py::bytes bytes = read_(to.size());
    const std::string_view text = bytes;
    require(text.size() <= to.size(), "read(", to.size(), ") returned ", text.size(), " bytes");
    text.copy(to.data(), text.size());
    return text.size();
  }

 private:
  Read read_;
};

LabelledData label_inputs(const std::vector<PythonInput>& inputs, const Labeller& labeller,
                          std::optional<TokenCacheWriter*> cache,
                          const std::optional<PollFunction>& poll) {
  MemorySink memory;
  LabelSink& sink = cache ? static_cast<LabelSink&>(**cache) : memory;
  const auto poll_python = [&](const LabelProgress& progress) {
    const py::gil_scoped_acquire held;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (poll) (*poll)(progress.num_bytes, progress.num_records);
  };
  LabelSummary summary = label_data(to_inputs(inputs), labeller, sink, poll_python);
  if (cache && summary.num_faults > 0) memory.bad_records = (*cache)->read_bad_records();
  return {std::move(memory.dataset), std::move(summary), std::move(memory.bad_records)};
}

LabelledData label_text(std::string text, const Labeller& labeller, const std::string& where) {
  TextSource source(std::move(text));
  MemorySink memory;
  const DataInput input{where, &source, Share(), RecordReader::kMaxRecord, false, "sharegpt"};
  LabelSummary summary = label_data({input}, labeller, memory, nullptr);
  return {std::move(memory.dataset), std::move(summary), std::move(memory.bad_records)};
}

LabelledData label_file(const std::string& path, const Labeller& labeller) {
  return label_inputs({{path, std::make_shared<FileSource>(path, "data file"), 1}}, labeller,
                      std::nullopt, std::nullopt);
}

std::optional<LabelledData> label_lists(const py::object& sources, const Labeller& labeller) {
  std::vector<Conversation> conversations;
  if (!PythonListReader().read(sources, conversations)) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return std::nullopt;
  }
  const py::gil_scoped_release released;
  labeller.split(conversations);
  return label_conversations(std::move(conversations), labeller);
}

// A view of bytes that a Python object owns. memoryviews of it and their slices keep the owner
// alive.
struct OwnedBytes {
  py::object owner;
  std::string_view bytes;
};

// Returns the --report_bad lines as a memoryview. They are not copied: there may be as many lines
// as records.
template <typename Owner>
py::cpp_function bad_records() {
  return py::cpp_function([](const py::object& self) {
    return py::memoryview(py::cast(OwnedBytes{self, self.cast<Owner&>().bad_records}));
  });
}

void bind_owned_bytes(py::module_& module) {
  py::class_<OwnedBytes>(module, "OwnedBytes", py::buffer_protocol())
      .def_buffer([](OwnedBytes& self) {
        return py::buffer_info(self.bytes.data(), static_cast<py::ssize_t>(self.bytes.size()));
      });
}

using BlockRow = std::tuple<uint64_t, uint64_t, uint64_t>;

std::vector<BlockRow> classify(const py::bytes& bytes, bool portable) {
  const std::string_view text = bytes;
  std::vector<JsonBlock> blocks(text.size() / kJsonBlockSize);
  (portable ? classify_json_portable : classify_json)(text.data(), blocks.size(), blocks.data());
  std::vector<BlockRow> rows;
  for (const auto& [quotes, backslashes, brackets] : blocks) {
    rows.emplace_back(quotes, backslashes, brackets);
  }
  return rows;
}

void bind_inputs(py::module_& module) {
  py::class_<PythonInput>(module, "DataInput")
      .def(py::init([](std::string name, const std::string& path, double weight, size_t limit,
                       std::string format) {
             return PythonInput{std::move(name), std::make_shared<FileSource>(path, "data file"),
                                weight, limit, std::move(format)};
           }),
           py::arg("name"), py::arg("path"), py::arg("weight") = 1.0,
           py::arg("max_record_bytes") = RecordReader::kMaxRecord,
           py::arg("data_format") = kAutoFormat)
      .def(py::init([](std::string name, Read read, double weight, size_t limit,
                       std::string format) {
             return PythonInput{std::move(name), std::make_shared<PythonSource>(std::move(read)),
                                weight, limit, std::move(format)};
           }),
           py::arg("name"), py::arg("read"), py::arg("weight") = 1.0,
           py::arg("max_record_bytes") = RecordReader::kMaxRecord,
           py::arg("data_format") = kAutoFormat)
      .def_readonly("name", &PythonInput::name);
  py::class_<LabelledData>(module, "LabelledData")
      .def_property_readonly(
          "dataset", [](LabelledData& self) -> TokenDataset& { return self.dataset; },
          py::return_value_policy::reference_internal)
      .def_property_readonly("report", [](LabelledData& self) { return self.summary.report; })
      .def_property_readonly("faults", [](LabelledData& self) { return self.summary.faults; })
      .def_property_readonly("num_faults",
                             [](LabelledData& self) { return self.summary.num_faults; })
      .def_property_readonly("bad_records", bad_records<LabelledData>());
}

void bind_cache(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  py::register_exception<DamagedCache>(module, "DamagedCacheError", PyExc_RuntimeError);
  py::register_exception<CacheWriteError>(module, "CacheWriteError", PyExc_RuntimeError);
  py::class_<TokenCacheWriter>(module, "TokenCacheWriter")
      .def(py::init([](const std::string& directory) {
             return std::make_unique<TokenCacheWriter>(posix_file_system(), directory);
           }),
           py::arg("directory"))
      .def("commit", &TokenCacheWriter::commit, py::arg("key"), py::arg("report"), release());
  py::class_<TokenCache>(module, "TokenCache")
      .def_property_readonly(
          "dataset", [](TokenCache& self) -> TokenDataset& { return self.dataset; },
          py::return_value_policy::reference_internal)
      .def_property_readonly("report", [](TokenCache& self) { return py::bytes(self.report); })
      .def_property_readonly("bad_records", bad_records<TokenCache>());
  module.def("open_token_cache", &open_token_cache, py::arg("path"), py::arg("key"),
             py::arg("verify") = true, release());
  module.attr("cache_temporary_prefix") = kCacheTemporaryPrefix;
}

}  // namespace

void bind_data_labels(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  bind_owned_bytes(module);
  bind_inputs(module);
  bind_cache(module);
  py::class_<DataCounts>(module, "DataCounts")
      .def_readonly("num_records", &DataCounts::num_records)
      .def_readonly("num_messages", &DataCounts::num_messages)
      .def_readonly("num_text_bytes", &DataCounts::num_text_bytes);
  module.def(
      "count_data",
      [](const std::vector<PythonInput>& inputs, int num_threads) {
        return count_data(to_inputs(inputs), num_threads);
      },
      py::arg("inputs"), py::arg("num_threads") = 0, release());
  module.def("label_inputs", &label_inputs, py::arg("inputs"), py::arg("labeller"),
             py::arg("cache") = py::none(), py::arg("poll") = py::none(), release());
  module.def("label_file", &label_file, py::arg("path"), py::arg("labeller"), release());
  module.def("label_text", &label_text, py::arg("text"), py::arg("labeller"),
             py::arg("where") = "conversations", release());
  module.def("label_lists", &label_lists, py::arg("sources"), py::arg("labeller"));
  module.def("classify_json", &classify, py::arg("text"), py::arg("portable") = false);
  module.def(
      "find_string_special",
      [](const py::bytes& bytes, bool portable) {
        const std::string_view text = bytes;
        bool has_wide = false;
        const auto find = portable ? find_string_special_portable : find_string_special;
        const size_t at = find(text.data(), text.size(), &has_wide);
        return std::pair(at, has_wide);
      },
      py::arg("text"), py::arg("portable") = false);
  module.def(
      "copies_of_record",
      [](double weight, int64_t number) { return Share(weight).copies(number); }, py::arg("weight"),
      py::arg("number"));
}

}  // namespace fastsft::bindings
