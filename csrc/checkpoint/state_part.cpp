#include "checkpoint/state_part.h"

#include <algorithm>
#include <span>

#include "checkpoint/host_copy.h"
#include "checkpoint/local_range.h"
#include "data/device_event.h"
#include "shard/unit_state.h"

namespace fastsft {
namespace {

// Part `index` of `count`, cut at multiples of kAlignment.
ElementRange part_of(const ElementRange& range, int64_t index, int64_t count) {
  const int64_t step = (range.size() + count * kAlignment - 1) / (count * kAlignment) * kAlignment;
  const int64_t begin = std::min(range.begin + index * step, range.end);
  return {begin, std::min(begin + step, range.end)};
}

UnitState narrowed(const UnitState& state, const ElementRange& range) {
  const auto cut = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, range.begin - state.begin, range.size()) : tensor;
  };
  UnitState part{.unit = state.unit,
                 .begin = range.begin,
                 .end = range.end,
                 .master = cut(state.master),
                 .high = cut(state.high),
                 .specs = state.specs};
  for (size_t i = 0; i < state.values.size(); ++i) {
    const StateSpec& spec = state.kept()[i];
    const int64_t first = spec.by_ranges() ? spec.offset(state.range(), range) : 0;
    part.values.push_back(state.values[i].narrow(0, first, spec.stored(range)));
  }
  return part;
}

}  // namespace

StatePart part_to_write(Strategy& strategy, Communicator& all) {
  const Communicator& shards = strategy.shards();
  const std::span<const UnitState> units = strategy.states();
  const bool replicated =
      shards.world_size() > 1 && std::all_of(units.begin(), units.end(), owns_whole);
  // Those that hold the same elements divide them.
  const int64_t among = replicated ? shards.world_size() : 1;
  const int64_t index = strategy.copy() * among + (replicated ? shards.rank() : 0);
  StatePart part{all.rank(), all.world_size(), {}};
  for (const auto& state : units) {
    ElementRange owned = state.range().intersection({0, state.unit->numel()});  // no padding
    if (owned.size() == 0) owned = {state.begin, state.begin};
    const ElementRange range = part_of(owned, index, strategy.copies() * among);
    part.states.push_back(narrowed(state, range));
  }
  return part;
}

namespace {

void make_room(at::Tensor& to, const at::Tensor& from, at::ScalarType dtype) {
  const bool fits = to.defined() && to.numel() == from.numel() && to.scalar_type() == dtype;
  if (!fits) to = host_buffer(from.numel(), from.device(), dtype);
}

void copy_values(at::Tensor& to, const at::Tensor& from) {
  make_room(to, from, from.scalar_type());
  to.copy_(from, /*non_blocking=*/true);
}

// In pieces: the halves of a split master become float32 on the device, where a plan leaves no room
// for a whole unit of it.
void copy_master(at::Tensor& to, const UnitState& from) {
  constexpr int64_t kPiece = int64_t{1} << 24;
  make_room(to, from.master, at::kFloat);
  for (int64_t begin = from.begin; begin < from.end; begin += kPiece) {
    const ElementRange range{begin, std::min(begin + kPiece, from.end)};
    to.narrow(0, begin - from.begin, range.size())
        .copy_(read_master(from, range), /*non_blocking=*/true);
  }
}

// Of the first tensor that is not in host memory, where that is one.
at::Device device_of(const StatePart& part) {
  for (const auto& state : part.states) {
    std::vector<at::Tensor> tensors = state.values;
    tensors.insert(tensors.end(), {state.master, state.high});
    for (const auto& tensor : tensors) {
      if (tensor.defined() && !tensor.is_cpu()) return tensor.device();
    }
  }
  return at::kCPU;
}

}  // namespace

void StateStaging::copy(const StatePart& live) {
  part_.rank = live.rank;
  part_.world_size = live.world_size;
  part_.states.resize(live.states.size());
  for (size_t i = 0; i < live.states.size(); ++i) {
    const UnitState& from = live.states[i];
    UnitState& to = part_.states[i];
    to.unit = from.unit;
    to.begin = from.begin;
    to.end = from.end;
    copy_master(to.master, from);
    to.specs = from.specs;
    to.values.resize(from.values.size());
    for (size_t k = 0; k < from.values.size(); ++k) copy_values(to.values[k], from.values[k]);
  }
  DeviceEvent copied(device_of(live));
  copied.record();
  copied.synchronize("staging of a checkpoint");
}

int64_t staging_bytes(const StatePart& live) {
  const at::Device device = device_of(live);
  int64_t sum = 0;
  for (const auto& state : live.states) {
    sum += host_buffer_bytes(4 * state.master.numel(), device);
    for (const auto& value : state.values) {
      sum += host_buffer_bytes(static_cast<int64_t>(value.nbytes()), device);
    }
  }
  return sum;
}

}  // namespace fastsft
