#include <optional>
#include <span>

#include "checkpoint/all_or_none.h"
#include "checkpoint/gather.h"
#include "checkpoint/host_values.h"
#include "checkpoint/state_file.h"
#include "checkpoint/training_state.h"
#include "shard/unit_state.h"
#include "storage/safetensors_writer.h"

namespace fastsft {
namespace {

TensorSpec spec_of(const UnitState& state, const std::string& name, DType dtype, int64_t count) {
  return {state.unit->name() + "." + name, dtype, {static_cast<uint64_t>(count)}};
}

std::vector<TensorSpec> specs_of(const StatePart& part) {
  std::vector<TensorSpec> specs;
  for (const auto& state : part.states) {
    specs.push_back(spec_of(state, "master", DType::kF32, state.end - state.begin));
    for (const auto& kept : state.kept()) {
      specs.push_back(spec_of(state, kept.name, stored_dtype(kept), kept.stored(state.range())));
    }
  }
  return specs;
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

// Describes the training state as one part with all elements of every unit, for the header of a
// file that a single rank writes. The part has no tensors; they are streamed later.
StatePart whole_part(std::span<const UnitState> units) {
  StatePart part;
  for (const auto& state : units) {
    part.states.push_back({.unit = state.unit,
                           .begin = 0,
                           .end = state.unit->numel(),
                           .master = {},
                           .high = {},
                           .specs = state.specs});
  }
  return part;
}

}  // namespace

FileDigest save_training_state(FileSystem& file_system, const StatePart& part,
                               const std::string& directory) {
  SafetensorsWriter writer = open_file(file_system, part, directory);
  for (const auto& state : part.states) {
    HostValues host;
    for_pieces(state.range(), [&](const ElementRange& piece) {
      writer.write(std::as_bytes(host.master(state, piece)));
    });
    for (const at::Tensor& values : state.values) {
      for_pieces({0, values.numel()},
                 [&](const ElementRange& piece) { writer.write(host.bytes(values, piece)); });
    }
  }
  return writer.finish();
}

std::vector<FileDigest> stream_training_state(Strategy& strategy, Communicator& all,
                                              const std::string& directory,
                                              const Writers& writers) {
  const std::span<const UnitState> units = strategy.states();
  const bool writes = writers.writes(all);
  AllOrNone attempt;
  std::optional<SafetensorsWriter> writer;
  std::vector<FileDigest> digests;
  const auto run = [&](const auto& work) {
    if (writes) attempt.run(work);
  };
  run([&] { writer.emplace(open_file(posix_file_system(), whole_part(units), directory)); });
  const auto stream = [&](int64_t count, const at::Tensor& whole) {
    run([&] {
      const auto bytes = static_cast<size_t>(count) * whole.element_size();
      writer->write({static_cast<const std::byte*>(whole.const_data_ptr()), bytes});
    });
  };
  for (size_t i = 0; i < units.size() && writers.gathers(strategy); ++i) {
    const UnitState& state = units[i];
    stream(state.unit->numel(), gather_range(state, read_master(state), strategy.shards(),
                                             strategy.device(), writers.readers()));
    for (size_t k = 0; k < state.values.size(); ++k) {
      stream(state.kept()[k].held({0, state.unit->numel()}),
             gather_values(state, k, strategy.shards(), strategy.device(), writers.readers()));
    }
  }
  run([&] { digests.push_back(writer->finish()); });
  attempt.finish(all, strategy.device(), "saving the training state to " + directory);
  return digests;
}

}  // namespace fastsft
