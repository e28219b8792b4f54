#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/dtype_names.h"
#include "model/conversation_cost.h"
#include "train/allocation_meter.h"
#include "train/memory_plan.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

std::pair<double, double> cost_of(const std::string& config_json) {
  const PackCost cost = conversation_cost(parse_model_config(config_json));
  return {cost.linear, cost.quadratic};
}

using Shape = std::tuple<int64_t, int64_t, int64_t>;

MemoryPlan plan(const std::string& config_json, PlanRequest request, const Shape& micro_batch,
                const Shape& step) {
  std::tie(request.micro_batch.tokens, request.micro_batch.labels, request.micro_batch.longest) =
      micro_batch;
  std::tie(request.step_tokens, request.step_labels, request.micro_batches) = step;
  const py::gil_scoped_release released;
  return plan_memory(parse_model_config(config_json), request);
}

}  // namespace

void bind_train_memory(py::module_& module) {
  module.def("conversation_cost", &cost_of, py::arg("config_json"));
  py::class_<MemoryPlan>(module, "MemoryPlan")
      .def_property_readonly("parts",
                             [](const MemoryPlan& plan) {
                               return std::map<std::string, int64_t>(plan.parts.begin(),
                                                                     plan.parts.end());
                             })
      .def_readonly("peak", &MemoryPlan::peak)
      .def_readonly("outside", &MemoryPlan::outside)
      .def_readonly("host", &MemoryPlan::host);
  module.def(
      "plan_memory",
      [](const std::string& config_json, const std::string& compute_dtype,
         const std::string& strategy, const std::string& recompute, int world_size, int node_size,
         const std::string& grad_dtype, const std::string& optim_dtype,
         const std::string& master_dtype, bool offload, const Shape& micro_batch, const Shape& step,
         int64_t threads, bool on_cpu) {
        return plan(config_json,
                    {.strategy = strategy,
                     .dtype = float_dtype("compute_dtype", compute_dtype),
                     .recompute = recompute,
                     .world_size = world_size,
                     .node_size = node_size,
                     .grad_dtype = float_dtype("grad_dtype", grad_dtype),
                     .optim_dtype = float_dtype("optim_dtype", optim_dtype),
                     .split_master = is_split(master_dtype),
                     .offload = offload,
                     .threads = threads,
                     .on_cpu = on_cpu},
                    micro_batch, step);
      },
      py::arg("config_json"), py::kw_only(), py::arg("compute_dtype") = "float32",
      py::arg("strategy") = "no_shard", py::arg("recompute") = "selective",
      py::arg("world_size") = 1, py::arg("node_size") = 0, py::arg("grad_dtype") = "float32",
      py::arg("optim_dtype") = "float32", py::arg("master_dtype") = "float32",
      py::arg("offload") = false, py::arg("micro_batch") = Shape{},
      py::arg("step") = Shape{0, 0, 1}, py::arg("threads") = 1, py::arg("on_cpu") = true);
  module.def("recompute_policies", &recompute_policies);
  py::class_<AllocationMeter>(module, "AllocationMeter")
      .def_static("start", &AllocationMeter::start)
      .def_static("stop", &AllocationMeter::stop)
      .def_static("count", &AllocationMeter::count)
      .def_static("held", &AllocationMeter::held)
      .def_static("peak", &AllocationMeter::peak);
}

}  // namespace fastsft::bindings
