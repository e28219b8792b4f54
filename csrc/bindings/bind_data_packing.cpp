#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "core/error.h"
#include "data/best_fit.h"
#include "data/step_source.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;
using Cost =
    std::vector<double>;  // linear cost, quadratic cost; a third value of 1 if rows are padded
using Counts = std::optional<IntArray>;

PackCost pack_cost(const Cost& cost) {
  require(cost.size() == 2 || cost.size() == 3, "expected 2 or 3 costs, got ", cost.size());
  return {cost[0], cost[1], cost.size() == 3 && cost[2] != 0};
}

std::vector<int64_t> to_vector(const IntArray& array) {
  const auto values = view(array);
  return {values.begin(), values.end()};
}

GroupPlan plan_group(const IntArray& lengths, const IntArray& target_counts,
                     const ReferenceGroup& group, int64_t rank, const std::string& norm,
                     bool average, int64_t micro_batch_tokens, const Cost& cost,
                     const Counts& label_counts) {
  const RowCounts rows{view(lengths), view(target_counts),
                       view(label_counts.value_or(target_counts))};
  const py::gil_scoped_release released;
  return plan_of_rank(
      pack_group(rows, group, loss_norm(norm, average), {micro_batch_tokens, pack_cost(cost)}),
      rank);
}

std::pair<py::array_t<int32_t>, py::array_t<int64_t>> best_fit(const IntArray& lengths,
                                                               int64_t capacity) {
  const auto items = view(lengths);
  Packing packing;
  {
    const py::gil_scoped_release released;
    packing = pack_best_fit(items, capacity);
  }
  return {to_array(packing.items), to_array(packing.offsets)};
}

void bind_plans(py::module_& module) {
  const Cost by_tokens{1.0, 0.0};
  py::class_<GroupPlan>(module, "GroupPlan")
      .def_property_readonly("micro_batches",
                             [](const GroupPlan& plan) { return to_arrays(plan.micro_batches); })
      .def_property_readonly("weights",
                             [](const GroupPlan& plan) { return to_arrays(plan.weights); })
      .def_readonly("num_targets", &GroupPlan::num_targets)
      .def_readonly("num_conversations", &GroupPlan::num_conversations)
      .def_readonly("num_tokens", &GroupPlan::num_tokens);
  py::class_<PackingSummary>(module, "PackingSummary")
      .def_readonly("steps", &PackingSummary::steps)
      .def_readonly("conversations", &PackingSummary::conversations)
      .def_readonly("tokens", &PackingSummary::tokens)
      .def_readonly("micro_batches", &PackingSummary::micro_batches)
      .def_readonly("micro_batch_tokens", &PackingSummary::micro_batch_tokens)
      .def_readonly("micro_batch_labels", &PackingSummary::micro_batch_labels)
      .def_readonly("rank_step_tokens", &PackingSummary::rank_step_tokens)
      .def_readonly("rank_step_labels", &PackingSummary::rank_step_labels)
      .def_readonly("longest", &PackingSummary::longest)
      .def_readonly("balance", &PackingSummary::balance)
      .def_property_readonly(
          "attention_shapes",
          [](const PackingSummary& summary) {
            std::vector<int64_t> shapes;
            for (const auto& [conversations, longest] : summary.attention_shapes) {
              shapes.insert(shapes.end(), {conversations, longest});
            }
            return shapes;
          },
          "[conversations, longest, ...] of the ranges that cuDNN computes.");
  module.def("plan_group", &plan_group, py::arg("lengths"), py::arg("target_counts"),
             py::arg("group"), py::arg("rank") = 0, py::arg("loss_norm") = "global_tokens",
             py::arg("average_tokens_across_devices") = true, py::kw_only(),
             py::arg("micro_batch_tokens"), py::arg("cost") = by_tokens,
             py::arg("label_counts") = py::none());
}

void bind_source(py::module_& module) {
  py::class_<StepSource>(module, "StepSource")
      .def(py::init([](const IntArray& lengths, const IntArray& target_counts, int64_t batch_size,
                       int64_t world_size, bool drop_last, int64_t accumulation,
                       const std::string& norm, bool average, int64_t micro_batch_tokens,
                       const Cost& cost, const Counts& label_counts) {
             return StepSource(to_vector(lengths), to_vector(target_counts),
                               to_vector(label_counts.value_or(target_counts)),
                               {.shape = {batch_size, world_size, drop_last},
                                .accumulation = accumulation,
                                .norm = loss_norm(norm, average),
                                .pack = {micro_batch_tokens, pack_cost(cost)}});
           }),
           py::arg("lengths"), py::arg("target_counts"), py::kw_only(), py::arg("batch_size"),
           py::arg("world_size") = 1, py::arg("drop_last") = false, py::arg("accumulation") = 1,
           py::arg("loss_norm") = "global_tokens", py::arg("average_tokens_across_devices") = true,
           py::arg("micro_batch_tokens"), py::arg("cost") = Cost{1.0, 0.0},
           py::arg("label_counts") = py::none())
      .def(
          "plan",
          [](const StepSource& self, const IntArray& order, int64_t step, int64_t rank) {
            const auto rows = view(order);
            const py::gil_scoped_release released;
            return self.plan(rows, step, rank);
          },
          py::arg("order"), py::arg("step"), py::arg("rank") = 0)
      .def(
          "summary",
          [](const StepSource& self, const IntArray& order, int64_t steps) {
            const auto rows = view(order);
            const py::gil_scoped_release released;
            return self.summary(rows, steps);
          },
          py::arg("order"), py::arg("steps"));
}

}  // namespace

void bind_data_packing(py::module_& module) {
  bind_plans(module);
  bind_source(module);
  const Cost by_tokens{1.0, 0.0};
  module.def("pack_best_fit", &best_fit, py::arg("lengths"), py::arg("capacity"));
  module.def(
      "pack_step",
      [](const IntArray& lengths, int64_t ranks, int64_t micro_batch_tokens, const Cost& cost) {
        const auto items = view(lengths);
        const py::gil_scoped_release released;
        return pack_step(items, ranks, micro_batch_tokens, pack_cost(cost));
      },
      py::arg("lengths"), py::arg("ranks"), py::arg("micro_batch_tokens"),
      py::arg("cost") = by_tokens);
  module.def(
      "balance",
      [](const StepPacking& packing, const IntArray& lengths, const Cost& cost) {
        return balance(packing, view(lengths), pack_cost(cost));
      },
      py::arg("packing"), py::arg("lengths"), py::arg("cost") = by_tokens);
}

}  // namespace fastsft::bindings
