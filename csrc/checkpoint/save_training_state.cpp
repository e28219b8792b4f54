#include <optional>
#include <span>

#include "checkpoint/agreement.h"
#include "checkpoint/host_values.h"
#include "checkpoint/state_file.h"
#include "checkpoint/training_state.h"
#include "shard/master_weights.h"
#include "storage/safetensors_writer.h"

namespace fastsft {
namespace {

TensorSpec spec_of(const UnitState& state, const char* suffix, DType dtype) {
  return {state.unit->name() + suffix, dtype, {static_cast<uint64_t>(state.end - state.begin)}};
}

std::vector<TensorSpec> specs_of(const StatePart& part) {
  std::vector<TensorSpec> specs;
  for (const auto& state : part.states) {
    const DType moments = state.exp_avg.scalar_type() == at::kFloat ? DType::kF32 : DType::kBF16;
    specs.push_back(spec_of(state, ".master", DType::kF32));
    specs.push_back(spec_of(state, ".exp_avg", moments));
    specs.push_back(spec_of(state, ".exp_avg_sq", moments));
  }
  return specs;
}

void write_unit(SafetensorsWriter& writer, const UnitState& state) {
  HostValues host;
  const ElementRange all{state.begin, state.end};
  for_pieces(all, [&](const ElementRange& piece) {
    writer.write(std::as_bytes(host.master(state, piece)));
  });
  for (const at::Tensor* moment : {&state.exp_avg, &state.exp_avg_sq}) {
    for_pieces(
        all, [&](const ElementRange& piece) { writer.write(host.moment(state, *moment, piece)); });
  }
}

SafetensorsWriter open_file(FileSystem& file_system, const StatePart& part,
                            const std::string& directory) {
  StateFileLayout layout{part.rank, part.world_size, {}};
  for (const auto& state : part.states) {
    layout.units.push_back({state.unit->name(), state.unit->hash(), {state.begin, state.end}});
  }
  const std::string name = state_file_name(part.rank, part.world_size);
  return SafetensorsWriter(file_system, join_path(directory, name), specs_of(part),
                           {{"fastsft", layout_json(layout)}});
}

// The part of one rank that has everything; its tensors only say their dtypes.
StatePart whole_part(std::span<const UnitState> units) {
  StatePart part;
  for (const auto& state : units) {
    part.states.push_back({.unit = state.unit,
                           .begin = 0,
                           .end = state.unit->numel(),
                           .master = state.master,
                           .high = state.high,
                           .exp_avg = state.exp_avg,
                           .exp_avg_sq = state.exp_avg_sq});
  }
  return part;
}

}  // namespace

FileDigest save_training_state(FileSystem& file_system, const StatePart& part,
                               const std::string& directory) {
  SafetensorsWriter writer = open_file(file_system, part, directory);
  for (const auto& state : part.states) write_unit(writer, state);
  return writer.finish();
}

std::vector<FileDigest> stream_training_state(Strategy& strategy, Communicator& all,
                                              const std::string& directory,
                                              const Writers& writers) {
  const std::span<const UnitState> units = strategy.states();
  const bool writes = writers.writes(all);
  Agreement agreement;
  std::optional<SafetensorsWriter> writer;
  std::vector<FileDigest> digests;
  const auto attempt = [&](const auto& work) {
    if (writes) agreement.attempt(work);
  };
  attempt([&] { writer.emplace(open_file(posix_file_system(), whole_part(units), directory)); });
  const auto stream = [&](const UnitState& state, const at::Tensor& whole) {
    attempt([&] {
      const auto bytes = static_cast<size_t>(state.unit->numel()) * whole.element_size();
      writer->write({static_cast<const std::byte*>(whole.const_data_ptr()), bytes});
    });
  };
  for (size_t i = 0; i < units.size() && writers.gathers(strategy); ++i) {
    const auto gather = [&](const at::Tensor& range) {
      return gather_range(units[i], range, strategy.shards(), strategy.device(), writers.readers());
    };
    stream(units[i], gather(read_master(units[i])));
    stream(units[i], gather(units[i].exp_avg));
    stream(units[i], gather(units[i].exp_avg_sq));
  }
  attempt([&] { digests.push_back(writer->finish()); });
  agreement.settle(all, strategy.device(), "saving the training state to " + directory);
  return digests;
}

}  // namespace fastsft
