#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/python_model.h"
#include "model/context_heads.h"
#include "model/linears.h"
#include "model/recompute.h"
#include "ops/gemm/tuned_gemms.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
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
  if (model != nullptr) return plan_generic_memory(model->layout, request);
  return plan_memory(parse_model_config(config_json), request);
}

}  // namespace

void bind_train_memory(py::module_& module) {
  module.def(
      "takes_tiles",
      [](const std::string& config_json) { return !parse_model_config(config_json).is_mixture(); },
      py::arg("config_json"), "True if StateOptions.tile_tokens may be above 0 with this model.");
  module.def("check_context_ranks", &check_context_ranks, py::arg("config_json"), py::arg("ranks"),
             "ValueError unless `ranks` can share a row; None: a model without a native engine.");
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

namespace py = pybind11;

void bind_train_products(py::module_& module) {
  module.def(
      "tuned_gemms", [] { return to_json(TunedGemms::instance().entries()); },
      "JSON array of this process's tuned products, by which it runs them on a GPU.");
  module.def(
      "set_tuned_gemms",
      [](const std::string& json) { TunedGemms::instance().set(parse_tuned_gemms(json)); },
      py::arg("json"), "Products run by these from here on. ValueError for another text.");
}

namespace py = pybind11;

void bind_optim(py::module_& module) {
  py::class_<Schedule>(module, "Schedule", "Learning rates by step.")
      .def(py::init([](const std::string& name, double learning_rate, int64_t warmup_steps,
                       int64_t total_steps, const ScheduleOptions& options) {
             return Schedule(name, {learning_rate, warmup_steps, total_steps, options});
           }),
           py::arg("name"), py::kw_only(), py::arg("learning_rate"), py::arg("warmup_steps"),
           py::arg("total_steps"), py::arg("options") = ScheduleOptions{},
           "learning_rate: the peak. ValueError for an unknown name or option, or a bad value.")
      .def("rate", &Schedule::rate, py::arg("step"), "Of the 0-based optimizer step.");
  module.def(
      "optimizers", [] { return OptimizerRegistry::instance().names(); },
      "Names of optimizers, sorted: StateOptions.optimizer.");
  module.def(
      "schedule_names", [] { return ScheduleRegistry::instance().names(); },
      "All of them, sorted.");
}

}  // namespace fastsft::bindings
