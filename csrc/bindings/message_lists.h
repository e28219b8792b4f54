#pragma once

#include <pybind11/pybind11.h>

#include <string_view>
#include <vector>

#include "chat/conversation.h"
#include "chat/mark_names.h"

namespace fastsft::bindings {

namespace py = pybind11;

// Conversations from a sequence of message lists, read as RecordParser would read them from
// JSON. The GIL must be held.
class PythonListReader {
 public:
  // False when something is not of the plain kinds (list or tuple of dicts, texts of type str,
  // None, bool, int or float, no lone surrogate), where the way through JSON decides, and for an
  // error that Python has.
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
  // The object itself when it is a list or a tuple, nothing else.
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

  // A dict with "from" and "value" and none of the fields that mean something else.
  bool read_message(PyObject* source, Message& message) {
    if (!PyDict_CheckExact(source) || (PyDict_GET_SIZE(source) > 2 && !is_plain(source))) {
      return false;
    }
    for (const py::str& name : others_) {
      if (PyDict_GetItemWithError(source, name.ptr()) != nullptr) return false;
    }
    return read_value(PyDict_GetItemWithError(source, from_.ptr()), message.from) &&
           read_value(PyDict_GetItemWithError(source, value_.ptr()), message.value) &&
           PyErr_Occurred() == nullptr;
  }

  // Whether no field may say that the message is not learned.
  bool is_plain(PyObject* source) {
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(source, &at, &name, &value) != 0;) {
      if (PyDict_CheckExact(value)) return false;  // a mark may be inside
      if (PyLong_CheckExact(name)) continue;       // a number in JSON's quotes is none
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

  // ASCII text is in the object as it is; other text is encoded next to it, so that the object
  // does not keep a second copy.
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
  py::set plain_;  // names that are no marks
};

}  // namespace fastsft::bindings
