#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "core/error.h"
#include "train/engine.h"
#include "train/threads.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;
using Rows = IntArray;
using Weights = InputArray<double>;

at::Device parse_device(const std::string& name) {
  const bool known = name == "cpu" || name == "cuda" || name.starts_with("cuda:");
  require(known, "device is \"", name, "\", expected \"cpu\" or \"cuda:<number>\"");
  require(name == "cpu" || FASTSFT_WITH_CUDA, "device is \"", name,
          "\", but fastsft was built without CUDA kernels; build it where nvcc is found, or use "
          "--use_cpu True");
  const at::Device device(name);
  return device.is_cuda() && !device.has_index() ? at::Device(at::kCUDA, 0) : device;
}

std::unique_ptr<Engine> make_engine(const std::string& config_json, const std::string& device,
                                    EngineOptions options) {
  options.device = parse_device(device);
  const py::gil_scoped_release released;
  return std::make_unique<Engine>(config_json, options);
}

// Calls `step(micro_batches)` without the GIL.
template <typename Step>
auto with_micro_batches(const std::vector<Rows>& rows, const std::vector<Weights>& weights,
                        const Step& step) {
  require(rows.size() == weights.size(), rows.size(), " micro-batches with ", weights.size(),
          " weights");
  std::vector<MicroBatch> micro_batches;
  for (size_t i = 0; i < rows.size(); ++i)
    micro_batches.push_back({view(rows[i]), view(weights[i])});
  const py::gil_scoped_release released;
  return step(std::span<const MicroBatch>(micro_batches));
}

using Shape = std::tuple<int64_t, int64_t, int64_t>;

// Tokens, labels and longest conversation of a micro-batch; tokens, labels and micro-batches of a
// step.
void reserve(Engine& self, const Shape& micro_batch, const Shape& step) {
  const auto [tokens, labels, longest] = micro_batch;
  const auto [step_tokens, step_labels, micro_batches] = step;
  const py::gil_scoped_release released;
  self.reserve({tokens, labels, longest}, {step_tokens, step_labels, micro_batches});
}

double loss(Engine& self, const TokenDataset& dataset, const Rows& rows, const Weights& weights,
            double label_smoothing, bool find_packed) {
  const MicroBatch micro_batch{view(rows), view(weights)};
  const py::gil_scoped_release released;
  return self.loss(dataset, micro_batch, {label_smoothing, find_packed});
}

auto gradients(Engine& self, const TokenDataset& dataset, const Rows& rows, const Weights& weights,
               double label_smoothing, bool find_packed) {
  const MicroBatch micro_batch{view(rows), view(weights)};
  const py::gil_scoped_release released;
  return self.gradients(dataset, micro_batch, {label_smoothing, find_packed});
}

at::Tensor row_logits(Engine& self, const TokenDataset& dataset, const Rows& rows,
                      bool find_packed) {
  const auto numbers = view(rows);
  const py::gil_scoped_release released;
  return self.row_logits(dataset, numbers, find_packed);
}

at::Tensor logits(Engine& self, const Rows& input_ids, const Rows& lengths) {
  const auto ids = view(input_ids), sizes = view(lengths);
  const py::gil_scoped_release released;
  return self.logits(ids, sizes);
}

std::map<std::string, std::vector<int64_t>> engine_shapes(const Engine& self) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& unit : self.units()) {
    for (const auto& slot : unit.slots()) shapes[slot.name] = slot.shape;
  }
  return shapes;
}

std::vector<std::string> unit_names(const Engine& self) {
  std::vector<std::string> names;
  for (const auto& unit : self.units()) names.push_back(unit.name());
  return names;
}

std::vector<std::string> unit_hashes(const Engine& self) {
  std::vector<std::string> hashes;
  for (const auto& unit : self.units()) hashes.push_back(unit.hash());
  return hashes;
}

std::vector<int64_t> unit_sizes(const Engine& self) {
  std::vector<int64_t> sizes;
  for (const auto& unit : self.units()) sizes.push_back(unit.numel());
  return sizes;
}

}  // namespace

void bind_train(py::module_& module) {
  module.def("parallel_threads", &parallel_threads, py::arg("num_threads"),
             py::call_guard<py::gil_scoped_release>());

  py::class_<StepResult>(module, "StepResult")
      .def_readonly("loss", &StepResult::loss)
      .def_readonly("grad_norm", &StepResult::grad_norm)
      .def_readonly("finite", &StepResult::finite);

  py::class_<ReplayDigests>(module, "ReplayDigests")
      .def_property_readonly(
          "own",
          [](const ReplayDigests& self) { return std::pair(self.first.own, self.second.own); })
      .def_property_readonly("reduced", [](const ReplayDigests& self) {
        return std::pair(self.first.reduced, self.second.reduced);
      });
  py::class_<UnitDigest>(module, "UnitDigest")
      .def_readonly("unit", &UnitDigest::unit)
      .def_readonly("shard", &UnitDigest::shard)
      .def_readonly("state", &UnitDigest::state)
      .def_readonly("parameters", &UnitDigest::parameters);

  py::class_<trace::RecordedSpan>(module, "RecordedSpan")
      .def_property_readonly(
          "lane", [](const trace::RecordedSpan& span) { return trace::lane_name(span.lane); })
      .def_readonly("name", &trace::RecordedSpan::name)
      .def_readonly("began", &trace::RecordedSpan::began)
      .def_readonly("ended", &trace::RecordedSpan::ended)
      .def_readonly("begin_ns", &trace::RecordedSpan::begin_ns)
      .def_readonly("end_ns", &trace::RecordedSpan::end_ns);
  module.def("trace_dropped", [] { return trace::Recorder::instance().dropped(); });

  py::class_<Engine>(module, "Engine")
      .def(
          py::init([](const std::string& config_json, const StateOptions& state,
                      const std::string& device, const std::string& recompute,
                      const std::string& gather_group, const std::string& reduce_group,
                      int64_t num_threads, int64_t max_positions,
                      std::optional<size_t> results_behind, bool prefetch, double timeout_seconds,
                      const std::string& node_gather_group, const std::string& node_reduce_group,
                      const std::string& across_group, bool blocking) {
            return make_engine(config_json, device,
                               {.state = state,
                                .recompute = recompute,
                                .groups = {gather_group, reduce_group, node_gather_group,
                                           node_reduce_group, across_group},
                                .num_threads = num_threads,
                                .max_positions = max_positions,
                                .prefetch = prefetch,
                                .blocking = blocking,
                                .timeout_seconds = timeout_seconds,
                                .results_behind = results_behind});
          }),
          py::arg("config_json"), py::arg_v("state", StateOptions(), "StateOptions()"),
          py::kw_only(), py::arg("device") = "cpu", py::arg("recompute") = "selective",
          py::arg("gather_group") = "", py::arg("reduce_group") = "", py::arg("num_threads") = 0,
          py::arg("max_positions") = 0, py::arg("results_behind") = py::none(),
          py::arg("prefetch") = true, py::arg("timeout_seconds") = 0.0,
          py::arg("node_gather_group") = "", py::arg("node_reduce_group") = "",
          py::arg("across_group") = "", py::arg("blocking") = false,
          "config_json: of a Hugging Face directory. Groups: names of c10d's; empty: one rank, or\n"
          "one node. ValueError for what the model or the options do not allow.")
      .def("reserve", &reserve, py::kw_only(), py::arg("micro_batch"), py::arg("step"))
      .def(
          "begin_step",
          [](Engine& self, const TokenDataset& dataset, const std::vector<Rows>& micro_batches,
             const std::vector<Weights>& weights, double learning_rate, double beta1, double beta2,
             double eps, double weight_decay, double max_grad_norm, double label_smoothing,
             int64_t rounding_seed, double loss_limit, bool replay, double noise,
             int64_t noise_seed, bool find_packed) {
            const StepOptions options{
                {learning_rate, beta1, beta2, eps, weight_decay, rounding_seed},
                max_grad_norm,
                label_smoothing,
                loss_limit,
                replay,
                {noise, static_cast<uint64_t>(noise_seed)},
                find_packed};
            with_micro_batches(micro_batches, weights,
                               [&](auto batches) { self.begin_step(dataset, batches, options); });
          },
          py::arg("dataset"), py::arg("micro_batches"), py::arg("weights"), py::kw_only(),
          py::arg("learning_rate"), py::arg("beta1") = 0.9, py::arg("beta2") = 0.999,
          py::arg("eps") = 1e-8, py::arg("weight_decay") = 0.0, py::arg("max_grad_norm") = 1.0,
          py::arg("label_smoothing") = 0.0, py::arg("rounding_seed") = 0,
          py::arg("loss_limit") = std::numeric_limits<double>::infinity(),
          py::arg("replay") = false, py::arg("noise") = 0.0, py::arg("noise_seed") = 0,
          py::arg("find_packed") = false)
      .def_property_readonly("replay_digests", &Engine::replay_digests)
      .def("state_digests", &Engine::state_digests, py::call_guard<py::gil_scoped_release>())
      .def("take_results", &Engine::take_results, py::kw_only(), py::arg("all"),
           py::call_guard<py::gil_scoped_release>())
      .def("loss", &loss, py::arg("dataset"), py::arg("rows"), py::arg("weights"), py::kw_only(),
           py::arg("label_smoothing") = 0.0, py::arg("find_packed") = false)
      .def("gradients", &gradients, py::arg("dataset"), py::arg("rows"), py::arg("weights"),
           py::kw_only(), py::arg("label_smoothing") = 0.0, py::arg("find_packed") = false)
      .def("logits", &logits, py::arg("input_ids"), py::arg("lengths"))
      .def("row_logits", &row_logits, py::arg("dataset"), py::arg("rows"), py::kw_only(),
           py::arg("find_packed") = false)
      .def("named_parameters", &Engine::named_parameters, py::call_guard<py::gil_scoped_release>())
      .def("set_parameter", &Engine::set_parameter, py::arg("name"), py::arg("value"),
           py::call_guard<py::gil_scoped_release>())
      .def("publish", &Engine::publish, py::call_guard<py::gil_scoped_release>())
      .def("start_trace", &Engine::start_trace, py::kw_only(), py::arg("capacity"),
           py::call_guard<py::gil_scoped_release>())
      .def("stop_trace", &Engine::stop_trace, py::call_guard<py::gil_scoped_release>())
      .def("memory", &Engine::memory)
      .def_property("step_count", &Engine::step_count, &Engine::set_step_count)
      .def_property_readonly("parameter_shapes", &engine_shapes)
      .def_property_readonly("config_json", &Engine::config_json)
      .def_property_readonly("device", [](const Engine& self) { return self.device().str(); })
      .def_property_readonly("rank", [](Engine& self) { return self.communicator().rank(); })
      .def_property_readonly("world_size",
                             [](Engine& self) { return self.communicator().world_size(); })
      .def_property_readonly("vocab_size", [](Engine& self) { return self.config().vocab_size; })
      .def_property_readonly("num_parameters", &Engine::num_parameters)
      .def_property_readonly("num_non_embedding_parameters", &Engine::num_non_embedding_parameters)
      .def_property_readonly("unit_names", &unit_names)
      .def_property_readonly("unit_hashes", &unit_hashes)
      .def_property_readonly("unit_sizes", &unit_sizes);
}

}  // namespace fastsft::bindings
