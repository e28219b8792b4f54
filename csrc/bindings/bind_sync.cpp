#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "bindings/bind.h"
#include "core/error.h"
#include "core/rank_status.h"
#include "shard/strategy.h"
#include "shard/unit_state.h"
#include "storage/crc32c.h"
#include "sync/bucket.h"
#include "sync/row_group.h"
#include "train/engine.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastsft::bindings {
namespace {

enum class UnitValues { kCompute, kMaster };

// Returns a unit's whole flat parameters without padding, on the strategy's device. kCompute: the
// weights that forward reads, in the compute dtype; kMaster: float32. The result shares no memory.
// Collective over the ranks of one replica.
at::Tensor whole_unit(Strategy& strategy, size_t unit, UnitValues values) {
  const ScopedPhase phase("gathering weights to send");
  const ParamUnit& layout = *strategy.states()[unit].unit;
  const auto computed =
      values == UnitValues::kCompute ? strategy.compute_range(unit) : std::nullopt;
  const at::Tensor range =
      computed ? *computed : read_master(strategy.states()[unit]).to(strategy.device());
  if (strategy.replicated()) return range.narrow(0, 0, layout.numel()).clone();
  Communicator& shards = strategy.shards();
  const at::Tensor whole = at::empty({range.numel() * shards.world_size()}, range.options());
  shards.all_gather(whole, range, layout.name())->wait();
  return whole.narrow(0, 0, layout.numel());
}

using Unlocked = py::call_guard<py::gil_scoped_release>;
using WireTensor = std::tuple<std::string, std::string, std::vector<uint64_t>>;
using TiedNames = std::vector<std::pair<std::string, std::string>>;
using Tensors = std::vector<at::Tensor>;

DType dtype_of(const std::string& tensor, const std::string& dtype) {
  try {
    return parse_wire_dtype(dtype);
  } catch (const std::invalid_argument& error) {
    throw_invalid("tensor ", tensor, ": ", error.what());
  }
}

uint32_t buffer_checksum(const at::Tensor& buffer, int64_t bytes) {
  return crc32c(
      std::as_bytes(std::span(buffer.const_data_ptr<uint8_t>(), static_cast<size_t>(bytes))));
}

void bind_plan(py::module_& module) {
  py::class_<SyncPlan>(module, "SyncPlan")
      .def(py::init([](const std::vector<WireTensor>& tensors, const TiedNames& tied) {
             std::vector<TensorSpec> specs;
             for (const auto& [name, dtype, shape] : tensors) {
               specs.push_back({name, dtype_of(name, dtype), shape});
             }
             std::vector<TiedName> names;
             for (const auto& [name, owner] : tied) names.push_back({name, owner});
             return SyncPlan(std::move(specs), std::move(names));
           }),
           "tensors"_a, "tied"_a = TiedNames())
      .def_property_readonly("tensors",
                             [](const SyncPlan& plan) {
                               std::vector<WireTensor> tensors;
                               for (const auto& tensor : plan.tensors()) {
                                 tensors.emplace_back(tensor.name, torch_dtype_name(tensor.dtype),
                                                      tensor.shape);
                               }
                               return tensors;
                             })
      .def_property_readonly("tied",
                             [](const SyncPlan& plan) {
                               TiedNames tied;
                               for (const auto& [name, owner] : plan.tied()) {
                                 tied.emplace_back(name, owner);
                               }
                               return tied;
                             })
      .def_property_readonly("sizes", &SyncPlan::sizes)
      .def_property_readonly("total_bytes", &SyncPlan::total_bytes)
      .def_property_readonly("hash", &SyncPlan::hash)
      .def("__len__", [](const SyncPlan& plan) { return plan.tensors().size(); })
      .def("difference", &SyncPlan::difference, "other"_a, "ours"_a = "this plan",
           "theirs"_a = "the other plan", Unlocked())
      .def("vllm_chunks", &cut_vllm_chunks, "buffer_bytes"_a, Unlocked())
      .def("native_buckets", &cut_native_buckets, "bucket_bytes"_a, Unlocked())
      .def("tensor_batches", &cut_tensor_batches, "batch_bytes"_a, Unlocked());
  module.def("check_same_plan", &check_same_plan, "hashes"_a, Unlocked());
}

// Tensors of operations that were given up. This object keeps them alive so that the backend's
// thread never drops the last reference: torch would then acquire the GIL, which aborts a process
// that is exiting.
struct HeldTensors {
  Tensors tensors;
};

}  // namespace

void bind_sync(py::module_& module) {
  py::class_<HeldTensors>(module, "HeldTensors")
      .def(py::init([](Tensors tensors) { return HeldTensors{std::move(tensors)}; }), "tensors"_a);
  py::class_<SyncPiece>(module, "SyncPiece")
      .def_readonly("tensor", &SyncPiece::tensor)
      .def_readonly("begin", &SyncPiece::begin)
      .def_readonly("bytes", &SyncPiece::bytes)
      .def_readonly("offset", &SyncPiece::offset);
  py::class_<Bucket>(module, "SyncBucket")
      .def_readonly("pieces", &Bucket::pieces)
      .def_readonly("bytes", &Bucket::bytes)
      .def_property_readonly("first", [](const Bucket& b) { return b.pieces.front().tensor; })
      .def_property_readonly("last", [](const Bucket& b) { return b.pieces.back().tensor; });
  bind_plan(module);
  module.def(
      "pack_bucket",
      [](const SyncPlan& plan, const Bucket& bucket, size_t first, const Tensors& tensors,
         const at::Tensor& buffer) { pack(plan, bucket, first, tensors, buffer); },
      "plan"_a, "bucket"_a, "first"_a, "tensors"_a, "buffer"_a, Unlocked());
  module.def(
      "unpack_bucket",
      [](const SyncPlan& plan, const Bucket& bucket, size_t first, const Tensors& tensors,
         const at::Tensor& buffer) { unpack(plan, bucket, first, tensors, buffer); },
      "plan"_a, "bucket"_a, "first"_a, "tensors"_a, "buffer"_a, Unlocked());
  module.def("buffer_checksum", &buffer_checksum, "buffer"_a, "bytes"_a, Unlocked());
  module.def(
      "pack_rows",
      [](const Tensors& rows, const std::vector<Shape>& shapes, int64_t rank, int64_t world_size) {
        return pack_rows(rows, shapes, rank, world_size);
      },
      "rows"_a, "shapes"_a, "rank"_a, "world_size"_a, Unlocked());
  module.def(
      "join_rows",
      [](const at::Tensor& gathered, const Tensors& rows, const std::vector<Shape>& shapes,
         int64_t world_size) { return join_rows(gathered, rows, shapes, world_size); },
      "gathered"_a, "rows"_a, "shapes"_a, "world_size"_a, Unlocked());
}

namespace {

std::vector<std::pair<std::string, at::Tensor>> gather_unit(Engine& engine, size_t unit,
                                                            bool master) {
  require(unit < engine.units().size(), "unit ", unit, " of ", engine.units().size());
  engine.await_states();
  const at::Tensor flat =
      whole_unit(engine.strategy(), unit, master ? UnitValues::kMaster : UnitValues::kCompute);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& slot : engine.units()[unit].slots()) {
    tensors.emplace_back(slot.name, flat.narrow(0, slot.offset, slot.numel()).view(slot.shape));
  }
  return tensors;
}

std::vector<std::vector<std::pair<std::string, std::vector<int64_t>>>> unit_tensors(
    const Engine& engine) {
  std::vector<std::vector<std::pair<std::string, std::vector<int64_t>>>> units;
  for (const auto& unit : engine.units()) {
    auto& tensors = units.emplace_back();
    for (const auto& slot : unit.slots()) tensors.emplace_back(slot.name, slot.shape);
  }
  return units;
}

// Returns the dtype of the weights that forward reads.
std::string compute_dtype(Engine& engine) {
  const auto range = engine.strategy().compute_range(0);
  const auto dtype = range ? range->scalar_type() : at::kFloat;
  for (const auto& [name, one] : option_names(dtype)) {
    if (one == dtype) return name;
  }
  throw_runtime("a compute dtype without a name");
}

}  // namespace

void bind_sync_engine(py::module_& module) {
  module.def("gather_unit", &gather_unit, "engine"_a, "unit"_a, py::kw_only(), "master"_a,
             py::call_guard<py::gil_scoped_release>());
  module.def("compute_dtype", &compute_dtype, "engine"_a);
  module.def("unit_tensors", &unit_tensors, "engine"_a);
}

}  // namespace fastsft::bindings
