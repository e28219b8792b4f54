#include "bindings/python_records.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

ValueKind kind_of(const py::handle& object) {
  if (py::isinstance<py::str>(object)) return ValueKind::kString;
  if (py::isinstance<py::dict>(object)) return ValueKind::kObject;
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object))
    return ValueKind::kArray;
  if (object.is_none()) return ValueKind::kNull;
  if (py::isinstance<py::bool_>(object))
    return object.cast<bool>() ? ValueKind::kTrue : ValueKind::kFalse;
  return ValueKind::kNumber;
}

// As UTF-8; a lone surrogate keeps its three forbidden bytes, for the check to find.
std::string text_of(const py::handle& object) {
  Py_ssize_t size = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size))
    return {text, static_cast<size_t>(size)};
  PyErr_Clear();
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(object.ptr(), "utf-8", "surrogatepass"));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

Value read_value(const py::dict& message, const char* key) {
  Value value;
  if (!message.contains(key)) return value;
  const py::object object = message[key];
  value.kind = kind_of(object);
  value.is_true = PyObject_IsTrue(object.ptr()) == 1;
  if (value.is_text()) value.text = text_of(object);
  return value;
}

Message read_message(const py::handle& object) {
  Message message;
  message.kind = kind_of(object);
  if (message.kind != ValueKind::kObject) return message;
  const auto fields = py::reinterpret_borrow<py::dict>(object);
  message.from = read_value(fields, "from");
  message.value = read_value(fields, "value");
  return message;
}

Conversation read_source(const py::handle& object) {
  Conversation conversation;
  conversation.messages_kind = kind_of(object);
  conversation.messages_empty = PyObject_IsTrue(object.ptr()) == 0;
  if (conversation.messages_kind != ValueKind::kArray) return conversation;
  for (const py::handle& message : py::reinterpret_borrow<py::sequence>(object)) {
    conversation.messages.push_back(read_message(message));
  }
  return conversation;
}

}  // namespace

std::vector<Conversation> read_python_sources(const py::sequence& sources) {
  std::vector<Conversation> conversations;
  conversations.reserve(sources.size());
  for (const py::handle& source : sources) conversations.push_back(read_source(source));
  return conversations;
}

}  // namespace fastsft::bindings
