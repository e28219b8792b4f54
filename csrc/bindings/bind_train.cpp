#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "bindings/python_model.h"
#include "core/build_info.h"
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
  require(name == "cpu" || has_cuda(), "device is \"", name,
          "\", but fastsft was built without CUDA kernels; build it where nvcc is found, or use "
          "--use_cpu True");
  const at::Device device(name);
  return device.is_cuda() && !device.has_index() ? at::Device(at::kCUDA, 0) : device;
}

std::unique_ptr<Engine> make_engine(const std::string& config_json, const std::string& device,
                                    EngineOptions options, const PythonModelMaker* model) {
  options.device = parse_device(device);
  auto called = model == nullptr ? nullptr : model->make();
  const py::gil_scoped_release released;
  return std::make_unique<Engine>(config_json, options, std::move(called));
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

// Reserves memory. `micro_batch` is (tokens, labels, longest conversation) and `step` is (tokens,
// labels, micro-batches).
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
               double label_smoothing, bool find_packed, std::optional<int64_t> dropout_seed) {
  const MicroBatch micro_batch{view(rows), view(weights)};
  const py::gil_scoped_release released;
  return self.gradients(dataset, micro_batch, {label_smoothing, find_packed, dropout_seed});
}

void tune_gemms(Engine& self, const TokenDataset& dataset, const Rows& rows,
                const Weights& weights) {
  const MicroBatch micro_batch{view(rows), view(weights)};
  const py::gil_scoped_release released;
  self.tune_gemms(dataset, micro_batch);
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
  for (const auto* units : {&self.units(), &self.frozen_units()}) {
    for (const auto& unit : *units) {
      for (const auto& slot : unit.slots()) shapes[slot.name] = slot.shape;
    }
  }
  return shapes;
}

std::map<std::string, std::vector<int64_t>> trained_shapes(const Engine& self) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& unit : self.units()) {
    for (const auto& slot : unit.slots()) {
      if (!slot.held) shapes[slot.name] = slot.shape;
    }
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

using EngineClass = py::class_<Engine>;

void define_construction(EngineClass& engine) {
  engine
      .def(
          py::init([](const std::string& config_json, const StateOptions& state,
                      const AdapterOptions& adapters, const std::string& device,
                      const std::string& recompute, const std::string& gather_group,
                      const std::string& reduce_group, int64_t num_threads, int64_t max_positions,
                      std::optional<size_t> results_behind, bool prefetch, double timeout_seconds,
                      const std::string& node_gather_group, const std::string& node_reduce_group,
                      const std::string& across_group, const std::string& context_group,
                      bool blocking, const std::optional<PythonModelMaker>& model) {
            return make_engine(config_json, device,
                               {.state = state,
                                .adapters = adapters,
                                .recompute = recompute,
                                .groups = {gather_group, reduce_group, node_gather_group,
                                           node_reduce_group, across_group, context_group},
                                .num_threads = num_threads,
                                .max_positions = max_positions,
                                .prefetch = prefetch,
                                .blocking = blocking,
                                .timeout_seconds = timeout_seconds,
                                .results_behind = results_behind},
                               model ? &*model : nullptr);
          }),
          py::arg("config_json"), py::arg_v("state", StateOptions(), "StateOptions()"),
          py::kw_only(), py::arg_v("adapters", AdapterOptions(), "AdapterOptions()"),
          py::arg("device") = "cpu", py::arg("recompute") = "selective",
          py::arg("gather_group") = "", py::arg("reduce_group") = "", py::arg("num_threads") = 0,
          py::arg("max_positions") = 0, py::arg("results_behind") = py::none(),
          py::arg("prefetch") = true, py::arg("timeout_seconds") = 0.0,
          py::arg("node_gather_group") = "", py::arg("node_reduce_group") = "",
          py::arg("across_group") = "", py::arg("context_group") = "", py::arg("blocking") = false,
          py::arg("model") = py::none(),
          "config_json: of a Hugging Face directory. adapters: what is trained; empty: "
          "everything.\n"
          "Groups: names of c10d's; empty: one rank, or one node. model: computes in place of the\n"
          "native one of config_json. ValueError for what the model or the options do not allow.")
      .def("use_cudnn", &Engine::use_cudnn, py::arg("use"),
           "Attention on a GPU is by cuDNN from here on, where it takes the rows; False: by flash\n"
           "attention, as at first.")
      .def("compile_attention", &Engine::compile_attention, py::arg("shapes"),
           py::call_guard<py::gil_scoped_release>(),
           "Compiles cuDNN's attention for [conversations, longest, ...]; counts what it takes.")
      .def("reserve", &reserve, py::kw_only(), py::arg("micro_batch"), py::arg("step"),
           "Makes all memory of training. micro_batch: the most (tokens, labels, longest\n"
           "conversation); step: the most (tokens, labels, micro-batches) of this rank.");
}

void define_steps(EngineClass& engine) {
  engine
      .def(
          "begin_step",
          [](Engine& self, const TokenDataset& dataset, const std::vector<Rows>& micro_batches,
             const std::vector<Weights>& weights, double learning_rate, double beta1, double beta2,
             double eps, double weight_decay, double max_grad_norm, double label_smoothing,
             int64_t rounding_seed, double loss_limit, bool replay, double noise,
             int64_t noise_seed, bool find_packed, int64_t dropout_seed, double loss_scale) {
            const StepOptions options{
                {learning_rate, beta1, beta2, eps, weight_decay, rounding_seed},
                max_grad_norm,
                loss_scale,
                label_smoothing,
                loss_limit,
                replay,
                {noise, static_cast<uint64_t>(noise_seed)},
                find_packed,
                dropout_seed};
            with_micro_batches(micro_batches, weights,
                               [&](auto batches) { self.begin_step(dataset, batches, options); });
          },
          py::arg("dataset"), py::arg("micro_batches"), py::arg("weights"), py::kw_only(),
          py::arg("learning_rate"), py::arg("beta1") = 0.9, py::arg("beta2") = 0.999,
          py::arg("eps") = 1e-8, py::arg("weight_decay") = 0.0, py::arg("max_grad_norm") = 1.0,
          py::arg("label_smoothing") = 0.0, py::arg("rounding_seed") = 0,
          py::arg("loss_limit") = std::numeric_limits<double>::infinity(),
          py::arg("replay") = false, py::arg("noise") = 0.0, py::arg("noise_seed") = 0,
          py::arg("find_packed") = false, py::arg("dropout_seed") = 0, py::arg("loss_scale") = 1.0,
          "Starts one optimizer step. micro_batches: int64 arrays of rows, as many on every rank, "
          "an\n"
          "empty one allowed; weights: float64 arrays that multiply the rows' token losses. "
          "noise:\n"
          "magnitude on the embeddings, 0: none. replay: computed twice and compared. A loss\n"
          "above loss_limit changes nothing. loss_scale: multiplies the loss in backward, is\n"
          "taken off before the update. ValueError for rows that are not there; collective.")
      .def("take_results", &Engine::take_results, py::kw_only(), py::arg("all"),
           py::call_guard<py::gil_scoped_release>(),
           "Results of steps, oldest first, each once: without those in flight, or all of them.")
      .def_property_readonly("replay_digests", &Engine::replay_digests,
                             "What the last step with `replay` found on this rank.")
      .def("state_digests", &Engine::state_digests, py::call_guard<py::gil_scoped_release>(),
           "Of every unit; collective.")
      .def("start_trace", &Engine::start_trace, py::kw_only(), py::arg("capacity"),
           py::call_guard<py::gil_scoped_release>(),
           "Records the newest `capacity` spans of this process from now on.")
      .def("stop_trace", &Engine::stop_trace, py::call_guard<py::gil_scoped_release>(),
           "The spans; waits for the device.")
      .def_property("step_count",
                    py::cpp_function(&Engine::step_count, py::call_guard<py::gil_scoped_release>()),
                    &Engine::set_step_count,
                    "Optimizer steps that updated; of a resumed run it is set.")
      .def("set_sync_each_batch", &Engine::set_sync_each_batch, py::arg("each"),
           py::call_guard<py::gil_scoped_release>(),
           "StateOptions.sync_each_batch from the next step on.")
      .def("set_tile_tokens", &Engine::set_tile_tokens, py::arg("most"),
           "StateOptions.tile_tokens from the next step on.");
}

void define_forward(EngineClass& engine) {
  engine
      .def("loss", &loss, py::arg("dataset"), py::arg("rows"), py::arg("weights"), py::kw_only(),
           py::arg("label_smoothing") = 0.0, py::arg("find_packed") = false,
           "This rank's sum of weight * cross entropy, without gradients; collective.")
      .def("gradients", &gradients, py::arg("dataset"), py::arg("rows"), py::arg("weights"),
           py::kw_only(), py::arg("label_smoothing") = 0.0, py::arg("find_packed") = false,
           py::arg("dropout_seed") = py::none(),
           "(loss, float32 gradients by name), summed over ranks, without an update; collective.\n"
           "dropout_seed: of the adapters' dropout, None: without it.")
      .def("tune_gemms", &tune_gemms, py::arg("dataset"), py::arg("rows"), py::arg("weights"),
           "Measures the matrix products of a micro-batch on a GPU that have no entry in\n"
           "`tuned_gemms` yet. Changes no parameter and no state; collective.")
      .def("logits", &logits, py::arg("input_ids"), py::arg("lengths"),
           "[tokens, vocab_size] float32 on the CPU. lengths add up to the number of ids. "
           "Collective.")
      .def("row_logits", &row_logits, py::arg("dataset"), py::arg("rows"), py::kw_only(),
           py::arg("find_packed") = false, "As logits, of all tokens of the rows.");
}

void define_parameters(EngineClass& engine) {
  engine
      .def("named_parameters", &Engine::named_parameters, py::call_guard<py::gil_scoped_release>(),
           "float32 copies on the CPU, whole, by name; collective.")
      .def("trained_parameters", &Engine::trained_parameters,
           py::call_guard<py::gil_scoped_release>(), "The same of what is trained.")
      .def(
          "set_parameter", &Engine::set_parameter, py::arg("name"), py::arg("value"),
          py::call_guard<py::gil_scoped_release>(),
          "Copies this rank's part of a whole tensor, of any floating dtype and device; `publish`\n"
          "follows after the last one. ValueError for an unknown name or another shape.")
      .def("publish", &Engine::publish, py::call_guard<py::gil_scoped_release>(),
           "What is computed with follows the masters; collective.")
      .def("memory", &Engine::memory, "Bytes that this rank holds now, by what they are for.")
      .def_property_readonly("parameter_shapes", &engine_shapes)
      .def_property_readonly("trained_shapes", &trained_shapes,
                             "As parameter_shapes, of what is trained.")
      .def_property_readonly("adapters", &Engine::adapters)
      .def_property_readonly("num_parameters", &Engine::num_parameters, "With adapters.")
      .def_property_readonly("num_trained_parameters", &Engine::num_trained_parameters)
      .def_property_readonly("num_non_embedding_parameters", &Engine::num_non_embedding_parameters)
      .def_property_readonly("unit_names", &unit_names)
      .def_property_readonly("unit_hashes", &unit_hashes,
                             "Of names, shapes and offsets; equal for every number of ranks.")
      .def_property_readonly("unit_sizes", &unit_sizes, "Elements without padding.");
}

}  // namespace

void bind_train(py::module_& module) {
  module.def("parallel_threads", &parallel_threads, py::arg("num_threads"),
             py::call_guard<py::gil_scoped_release>(),
             "Threads that loops really run on when asked for num_threads.");
  EngineClass engine(
      module, "Engine",
      "The model with parameters, gradients and optimizer state of this rank.\n"
      "Collective methods are called by every rank in one order. Not for two threads.");
  define_construction(engine);
  define_steps(engine);
  define_forward(engine);
  define_parameters(engine);
  engine.def_property_readonly("config_json", &Engine::config_json)
      .def_property_readonly("device", [](const Engine& self) { return self.device().str(); })
      .def_property_readonly("rank", [](Engine& self) { return self.communicator().rank(); })
      .def_property_readonly("world_size",
                             [](Engine& self) { return self.communicator().world_size(); })
      .def_property_readonly("context_parallel_size",
                             [](Engine& self) { return self.context().world_size(); })
      .def_property_readonly("vocab_size", [](Engine& self) { return self.vocab_size(); });
}

}  // namespace fastsft::bindings
