#include "shard/state_plan.h"

#include <algorithm>
#include <bit>

#include "shard/nf4_unit.h"

namespace fastsft {
namespace {

// Bytes of one rank's optimizer state, over all units. `device`: state that always stays on the
// device. `host`: state that can be offloaded, rounded as the host's allocator rounds it.
struct KeptBytes {
  int64_t device = 0, host = 0;
  int64_t movable = 0;         // state that can be offloaded, not rounded
  std::vector<int64_t> slots;  // largest unit's bytes: [0] master weights, [1 ...] state tensors
};

KeptBytes kept_bytes(const StateDescription& d, const std::vector<StateSpecs>& specs, int rank) {
  KeptBytes kept;
  const auto add = [&](size_t place, int64_t bytes) {
    kept.movable += bytes;
    // torch's page-locked allocator rounds up to powers of two; ordinary host memory is not
    // rounded.
    kept.host += d.cloned || bytes == 0
                     ? bytes
                     : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
    kept.slots.resize(std::max(kept.slots.size(), place + 1));
    kept.slots[place] = std::max(kept.slots[place], bytes);
  };
  for (size_t unit = 0; unit < d.units.size(); ++unit) {
    const int64_t size = d.padded(unit) / d.world_size;
    const ElementRange range{size * rank, size * (rank + 1)};
    add(0, size * d.options.master_itemsize());
    for (size_t i = 0; i < specs[unit].size(); ++i) {
      const StateSpec& spec = specs[unit][i];
      const int64_t bytes = spec.held(range) * spec.itemsize();
      spec.by_ranges() ? add(i + 1, bytes) : void(kept.device += bytes);
    }
  }
  return kept;
}

bool packs(const StateDescription& d, const ParamUnit& unit) {
  return d.options.frozen_dtype == FrozenDtype::kNf4 && unit.linear_end() > 0;
}

}  // namespace

int64_t StateDescription::total() const {
  int64_t sum = 0;
  for (size_t unit = 0; unit < units.size(); ++unit) sum += padded(unit);
  return sum;
}

int64_t StateDescription::largest(size_t first_unit) const {
  int64_t most = 0;
  for (size_t unit = first_unit; unit < units.size(); ++unit) most = std::max(most, padded(unit));
  return most;
}

StateDescription StateDescription::within_node() const {
  StateDescription node = *this;
  if (node_size > 0) {
    node.world_size = node_size;
    node.copies = world_size / node_size;
  }
  return node;
}

int64_t StateDescription::largest_gradient() const {
  if (!in_products) return largest(0);
  int64_t most = 0;
  for (size_t unit = 0; unit < units.size(); ++unit)
    most = std::max(most, padded(unit) - units[unit].linear_end());
  return most;
}

int64_t StateDescription::reduced_gradients() const {
  const int64_t most = largest_gradient(), range = most / world_size;
  const auto open = static_cast<int64_t>(2 + resident_units);
  int64_t wide = open * most;
  if (world_size > 1 || copies > 1) wide += range;  // the range that is being reduced
  const int64_t grad_itemsize = options.grad_itemsize();
  if (grad_itemsize < 4 && copies > 1) wide += range;  // the sum over replicas in flight
  return total() / world_size * grad_itemsize + 4 * wide;
}

int64_t StateDescription::widened_sums() const {
  if (!cloned || !accumulates || options.grad_itemsize() == 4) return 0;
  return 2 * 4 * largest_gradient() / world_size;
}

void plan_optimizer(const StateDescription& d, StateBytes& bytes) {
  std::vector<StateSpecs> specs;
  for (const auto& unit : d.units) {
    specs.push_back(d.layout ? d.layout(unit, d.options) : StateSpecs());
  }
  for (int rank = 0; rank < d.world_size; ++rank) {
    const KeptBytes kept = kept_bytes(d, specs, rank);
    int64_t slots = 0;
    for (const int64_t slot : kept.slots) slots += 2 * slot;
    const int64_t device = kept.device + (d.options.offload ? slots : kept.movable);
    bytes.optimizer = std::max(bytes.optimizer, device);
    if (d.options.offload) bytes.offloaded = std::max(bytes.offloaded, kept.host);
  }
}

void plan_frozen_whole(const StateDescription& d, StateBytes& bytes) {
  if (d.frozen == nullptr) return;
  const int64_t itemsize = d.options.itemsize();
  int64_t unpacked = 0;
  for (const auto& unit : *d.frozen) {
    const int64_t size = unit.padded_numel(1) * itemsize;
    const bool packed = packs(d, unit);
    bytes.parameters += packed ? Nf4Sizes(unit, 1).held_bytes(itemsize) : size;
    if (packed) unpacked = std::max(unpacked, size);
  }
  bytes.buffers += unpacked;
}

void plan_frozen_ranges(const StateDescription& d, StateBytes& bytes) {
  if (d.frozen == nullptr || d.frozen->empty()) return;
  const int64_t itemsize = d.options.itemsize();
  int64_t largest = 0, packed = 0, gathered = 0;
  for (const auto& unit : *d.frozen) {
    const int64_t size = unit.padded_numel(d.world_size) * itemsize;
    const Nf4Sizes nf4(unit, d.world_size);
    largest = std::max(largest, size);
    if (packs(d, unit)) {
      bytes.parameters += nf4.held_bytes(itemsize);
      packed = std::max(packed, nf4.whole_bytes());
    } else {
      bytes.parameters += size / d.world_size;
      gathered = std::max(gathered, size);
    }
  }
  const auto open = static_cast<int64_t>(2 + d.resident_frozen_units);
  bytes.buffers += open * largest + 2 * packed;
  if (!d.clones()) return;
  // The clone of the largest gathered unit. Few gradients are reduced at the same time.
  bytes.clones_in_blocks += std::max(gathered, packed);
}

}  // namespace fastsft
