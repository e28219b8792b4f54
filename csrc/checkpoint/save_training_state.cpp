#include "checkpoint/local_range.h"
#include "checkpoint/state_file.h"
#include "checkpoint/training_state.h"
#include "shard/master_weights.h"
#include "storage/safetensors_writer.h"

namespace fastsft {
namespace {

TensorSpec spec_of(const UnitState& state, const char* suffix, DType dtype) {
  const auto count = static_cast<uint64_t>(owned_range(state).size());
  return {state.unit->name() + suffix, dtype, {count}};
}

std::vector<TensorSpec> specs_of(std::span<const UnitState> units) {
  std::vector<TensorSpec> specs;
  for (const auto& state : units) {
    const DType moments = state.exp_avg.scalar_type() == at::kFloat ? DType::kF32 : DType::kBF16;
    specs.push_back(spec_of(state, ".master", DType::kF32));
    specs.push_back(spec_of(state, ".exp_avg", moments));
    specs.push_back(spec_of(state, ".exp_avg_sq", moments));
  }
  return specs;
}

void write_owned(SafetensorsWriter& writer, const UnitState& state, const at::Tensor& tensor) {
  const at::Tensor values = load_owned(state, tensor);
  writer.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

}  // namespace

std::vector<FileDigest> save_training_state(Strategy& strategy, const std::string& directory) {
  if (strategy.copy() != 0) return {};
  const std::span<const UnitState> units = strategy.states();
  const int rank = strategy.shards().rank(), world_size = strategy.shards().world_size();
  bool replicated = world_size > 1;
  for (const auto& state : units) replicated = replicated && owns_whole(state);
  if (replicated && rank != 0) return {};
  StateFileLayout layout{rank, replicated ? 1 : world_size, {}};
  for (const auto& state : units) {
    layout.units.push_back({state.unit->name(), state.unit->hash(), owned_range(state)});
  }
  const std::string name = state_file_name(layout.rank, layout.world_size);
  SafetensorsWriter writer(posix_file_system(), join_path(directory, name), specs_of(units),
                           {{"fastsft", layout_json(layout)}});
  for (const auto& state : units) {
    write_owned(writer, state, read_master(state));
    write_owned(writer, state, state.exp_avg);
    write_owned(writer, state, state.exp_avg_sq);
  }
  return {writer.finish()};
}

}  // namespace fastsft
