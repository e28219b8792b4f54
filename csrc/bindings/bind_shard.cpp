#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "core/error.h"
#include "shard/state_options.h"
#include "shard/strategy.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

// An option type whose values have names. Such options are strings in Python; flags and free text
// keep their type.
template <typename Value>
concept Named = requires(Value value) { option_names(value); };

template <typename Value>
std::string option_value(const Value& value)
  requires Named<Value>
{
  for (const auto& [name, named] : option_names(value)) {
    if (named == value) return name;
  }
  throw_runtime("StateOptions: enum value has no registered name (internal error)");
}
template <typename Value>
const Value& option_value(const Value& value) {
  return value;
}

template <typename Value>
Value named_option(const char* option, const std::string& given) {
  std::string known;
  for (const auto& [name, value] : option_names(Value())) {
    if (!takes(option, value)) continue;
    if (given == name) return value;
    known += concat(known.empty() ? "" : " or ", "\"", name, "\"");
  }
  throw_invalid(option, " is \"", given, "\", expected ", known);
}

static_assert(std::apply(
                  []<typename... Value>(const StateOptionField<Value>&...) {
                    return ((Named<Value> || !std::is_enum_v<Value>) && ...);
                  },
                  state_option_fields()),
              "an enum of StateOptions needs an overload of option_names");

template <typename Value>
using PythonOption = std::decay_t<decltype(option_value(std::declval<const Value&>()))>;

template <typename Value>
void set_option(StateOptions& options, const StateOptionField<Value>& field,
                const PythonOption<Value>& value) {
  if constexpr (Named<Value>) {
    options.*field.member = named_option<Value>(field.name, value);
  } else {
    options.*field.member = value;
  }
}

// Calls `visit(field)` for each field, in declaration order.
template <typename Visit>
void each_field(const Visit& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, state_option_fields());
}

template <typename... Value>
void define_makers(py::class_<StateOptions>& type, const StateOptionField<Value>&... field) {
  const auto make = [=](const PythonOption<Value>&... value) {
    StateOptions options;
    (set_option(options, field, value), ...);
    return options;
  };
  const auto replace = [=](StateOptions options,
                           const std::optional<PythonOption<Value>>&... value) {
    ((value ? set_option(options, field, *value) : void()), ...);
    return options;
  };
  type.def(py::init(make), py::kw_only(),
           (py::arg(field.name) = option_value(StateOptions().*field.member))...,
           "ValueError for a dtype that an option does not have.");
  type.def("replace", replace, py::kw_only(), (py::arg(field.name) = py::none())...,
           "A copy with other values; None: as it is here.");
}

std::string state_options_repr(const StateOptions& options) {
  std::string text;
  each_field([&](const auto& field) {
    const auto value = py::repr(py::cast(option_value(options.*field.member)));
    text += concat(text.empty() ? "" : ", ", field.name, "=", std::string(value));
  });
  return "StateOptions(" + text + ")";
}

}  // namespace

void bind_shard(py::module_& module) {
  module.def("strategies", &strategies,
             "Names of sharding strategies, each with whether it shards within nodes.");
  module.def("strategies_with_whole_weights", &strategies_with_whole_weights,
             "Names of strategies under which every rank has all weights between micro-batches.");

  py::class_<StateOptions> type(module, "StateOptions",
                                "How parameters, gradients and optimizer state are held. Never "
                                "changes; `replace` makes another one.");
  std::apply([&](const auto&... field) { define_makers(type, field...); }, state_option_fields());
  each_field([&](const auto& field) {
    const auto member = field.member;
    type.def_property_readonly(
        field.name, [member](const StateOptions& self) { return option_value(self.*member); },
        field.text);
  });
  type.def_property_readonly("itemsize", &StateOptions::itemsize,
                             "Bytes of a parameter that is computed with.")
      .def_property_readonly("grad_itemsize", &StateOptions::grad_itemsize,
                             "Bytes of an element of the accumulated gradient.")
      .def_property_readonly(
          "master_itemsize", &StateOptions::master_itemsize,
          "Bytes of a master, or of its lower half; 0 where the master itself is "
          "computed with.")
      .def("check", &StateOptions::check,
           "Check that the options go together, as an engine does. ValueError if not.")
      .def("__repr__", &state_options_repr)
      .def("__eq__",
           [](const StateOptions& self, const py::object& other) {
             return py::isinstance<StateOptions>(other) && self == other.cast<StateOptions>();
           })
      .def("__hash__",
           [](const StateOptions& self) { return py::hash(py::str(state_options_repr(self))); });
}

}  // namespace fastsft::bindings
