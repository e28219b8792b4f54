#include "shard/param_unit.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"

namespace fastsft {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool group_decays(const ParamGroup& group) {
  FASTSFT_ASSERT(!group.slots.empty());
  const bool decay = group.slots.front().decay;
  for (const auto& slot : group.slots) FASTSFT_ASSERT(slot.decay == decay, slot.name);
  return decay;
}

// Adds `text` to an FNV-1a hash, which detects mistakes but not attacks.
void mix(uint64_t& state, const std::string& text) {
  for (unsigned char byte : text) state = (state ^ byte) * 1099511628211ull;
}

}  // namespace

int64_t ParamSlot::numel() const {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

ParamUnit::ParamUnit(std::string name, std::vector<ParamGroup> groups) : name_(std::move(name)) {
  std::stable_partition(groups.begin(), groups.end(), group_decays);
  bool only_linears = true;
  for (auto& group : groups) {
    const bool decay = group_decays(group);
    numel_ = round_up(numel_, kAlignment);
    only_linears = only_linears && group.slots.front().linear;
    for (auto& slot : group.slots) {
      slot.offset = numel_;
      numel_ += slot.numel();
      slots_.push_back(std::move(slot));
    }
    if (decay) decay_end_ = numel_;
    if (only_linears) linear_end_ = round_up(numel_, kAlignment);
  }
}

const ParamSlot* ParamUnit::find(const std::string& name) const {
  for (const auto& slot : slots_) {
    if (slot.name == name) return &slot;
  }
  return nullptr;
}

const ParamSlot& ParamUnit::slot(const std::string& name) const {
  if (const ParamSlot* found = find(name)) return *found;
  throw std::logic_error(concat("unit ", name_, " has no tensor ", name));
}

int64_t ParamUnit::padded_numel(int world_size) const {
  return round_up(numel_, kAlignment * world_size);
}

int64_t ParamUnit::shard_numel(int world_size) const {
  return padded_numel(world_size) / world_size;
}

std::string ParamUnit::hash() const {
  uint64_t state = 14695981039346656037ull;
  mix(state, name_);
  for (const auto& slot : slots_) {
    mix(state, slot.name + "@" + std::to_string(slot.offset));
    for (int64_t size : slot.shape) mix(state, "," + std::to_string(size));
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state));
  return text;
}

int64_t elements_of(const std::vector<ParamUnit>& units) {
  int64_t sum = 0;
  for (const auto& unit : units) {
    for (const auto& slot : unit.slots()) sum += slot.numel();
  }
  return sum;
}

}  // namespace fastsft
