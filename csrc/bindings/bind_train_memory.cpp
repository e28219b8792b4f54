#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/python_model.h"
#include "model/linears.h"
#include "model/recompute.h"
#include "train/memory.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

std::pair<double, double> cost_of(const std::string& config_json) {
  const PackCost cost = conversation_cost(parse_model_config(config_json));
  return {cost.linear, cost.quadratic};
}

using Shape = std::tuple<int64_t, int64_t, int64_t>;

MemoryPlan plan(const std::string& config_json, PlanRequest request, const Shape& micro_batch,
                const Shape& step, const PythonModelMaker* model) {
  std::tie(request.micro_batch.tokens, request.micro_batch.labels, request.micro_batch.longest) =
      micro_batch;
  std::tie(request.step_tokens, request.step_labels, request.micro_batches) = step;
  const py::gil_scoped_release released;
  if (model != nullptr) return plan_called_memory(model->layout, request);
  return plan_memory(parse_model_config(config_json), request);
}

}  // namespace

void bind_train_memory(py::module_& module) {
  module.def("conversation_cost", &cost_of, py::arg("config_json"),
             "Operations of a conversation of n tokens: (of each n, of each n * n).");
  py::class_<MemoryPlan>(module, "MemoryPlan", "Bytes of one rank.")
      .def_property_readonly(
          "parts",
          [](const MemoryPlan& plan) {
            return std::map<std::string, int64_t>(plan.parts.begin(), plan.parts.end());
          },
          "by what they are for; they add up to peak")
      .def_readonly("peak", &MemoryPlan::peak, "the most of torch's allocator at once")
      .def_readonly("outside", &MemoryPlan::outside, "held next to it")
      .def_readonly("host", &MemoryPlan::host, "page-locked, with a GPU");
  module.def(
      "plan_memory",
      [](const std::string& config_json, const StateOptions& state, const AdapterOptions& adapters,
         const std::string& recompute, int world_size, int node_size, const Shape& micro_batch,
         const Shape& step, int64_t threads, bool on_cpu, bool use_cudnn,
         const std::optional<PythonModelMaker>& model) {
        return plan(config_json,
                    {.state = state,
                     .adapters = adapters,
                     .recompute = recompute,
                     .world_size = world_size,
                     .node_size = node_size,
                     .threads = threads,
                     .on_cpu = on_cpu,
                     .use_cudnn = use_cudnn},
                    micro_batch, step, model ? &*model : nullptr);
      },
      py::arg("config_json"), py::arg_v("state", StateOptions(), "StateOptions()"), py::kw_only(),
      py::arg_v("adapters", AdapterOptions(), "AdapterOptions()"),
      py::arg("recompute") = "selective", py::arg("world_size") = 1, py::arg("node_size") = 0,
      py::arg("micro_batch") = Shape{}, py::arg("step") = Shape{0, 0, 1}, py::arg("threads") = 1,
      py::arg("on_cpu") = true, py::arg("use_cudnn") = false, py::arg("model") = py::none(),
      "Bytes of one rank. micro_batch: (tokens, labels, longest conversation), the largest of a\n"
      "rank; step: (tokens, labels, micro-batches) of a rank. ValueError for an unknown model,\n"
      "strategy or policy, and for nodes that do not divide the ranks. model: instead of the\n"
      "native one; its activations, labelled tokens and logits are not counted.");
  module.def("recompute_policies", &recompute_policies, "From the most memory to the most time.");
  py::class_<AllocationMeter>(module, "AllocationMeter",
                              "Counts what torch's CPU allocator hands out, in all threads.")
      .def_static("start", &AllocationMeter::start, "From zero. ValueError while it runs.")
      .def_static("stop", &AllocationMeter::stop, "Counts stay; memory stays valid.")
      .def_static("count", &AllocationMeter::count, "Pieces of memory since start.")
      .def_static("held", &AllocationMeter::held, "Bytes now.")
      .def_static("peak", &AllocationMeter::peak, "The most bytes at once since start.");
}

}  // namespace fastsft::bindings
