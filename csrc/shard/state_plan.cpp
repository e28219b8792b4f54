#include "shard/state_plan.h"

#include <algorithm>
#include <bit>

#include "shard/nf4_unit.h"

namespace fastsft {
namespace {

// torch's page-locked allocator hands out powers of two; a host's own memory comes as asked for.
int64_t host_bytes(const StateDescription& d, int64_t bytes) {
  return d.cloned ? bytes : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

int64_t offloaded_bytes(const StateDescription& d) {
  int64_t sum = 0;
  for (size_t unit = 0; unit < d.units.size(); ++unit) {
    const int64_t range = d.padded(unit) / d.world_size;
    sum += 2 * host_bytes(d, range * d.options.moment_itemsize());
    if (d.options.narrow()) sum += host_bytes(d, range * d.options.master_itemsize());
  }
  return sum;
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

int64_t StateDescription::reduced_gradients() const {
  const int64_t most = largest(0), range = most / world_size;
  const auto open = static_cast<int64_t>(2 + resident_units);
  int64_t wide = open * most;
  if (world_size > 1 || copies > 1) wide += range;  // the range under reduction
  const int64_t grad_itemsize = options.grad_itemsize();
  if (grad_itemsize < 4 && copies > 1) wide += range;  // the sum over copies under way
  return total() / world_size * grad_itemsize + 4 * wide;
}

int64_t StateDescription::widened_sums() const {
  return cloned && accumulates && options.grad_itemsize() < 4 ? 2 * 4 * largest(0) / world_size : 0;
}

void plan_optimizer(const StateDescription& d, StateBytes& bytes) {
  const int64_t width = d.options.optimizer_itemsize(), ranks = d.world_size;
  const int64_t state = width * (d.total() / ranks);
  bytes.optimizer = d.options.offload ? 2 * width * (d.largest(0) / ranks) : state;
  bytes.offloaded = d.options.offload ? offloaded_bytes(d) : 0;
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
  // The gather of the largest unit, next to which little is reduced.
  bytes.clones_in_blocks += std::max(gathered, packed);
}

}  // namespace fastsft
