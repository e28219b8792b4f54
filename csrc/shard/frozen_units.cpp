#include "shard/frozen_units.h"

#include <ATen/ops/zeros.h>

#include "ops/nf4/nf4.h"

namespace fastsft {

FrozenUnits::FrozenUnits(const std::vector<ParamUnit>& units, const Options& options)
    : units_(units), options_(options), pending_(units.size()) {
  const bool packs = options.dtype == FrozenDtype::kNf4 && !units.empty();
  const at::Tensor levels = packs ? nf4_levels(options.compute.device()) : at::Tensor();
  for (const auto& unit : units) add_state(unit, levels);
  make_buffers();
}

void FrozenUnits::add_state(const ParamUnit& unit, const at::Tensor& nf4_levels) {
  Communicator* shards = options_.shards;
  const int ranks = shards ? shards->world_size() : 1, rank = shards ? shards->rank() : 0;
  if (nf4_levels.defined() && unit.linear_end() > 0) {
    auto nf4 = std::make_shared<Nf4Unit>(unit, options_.compute, nf4_levels, ranks, rank);
    const at::Tensor rest = nf4->rest();
    states_.push_back({.unit = &unit,
                       .begin = unit.linear_end(),
                       .end = unit.linear_end() + rest.numel(),
                       .master = rest,
                       .nf4 = std::move(nf4)});
    return;
  }
  const int64_t size = unit.shard_numel(ranks), begin = size * rank;
  states_.push_back({.unit = &unit,
                     .begin = begin,
                     .end = begin + size,
                     .master = at::zeros({size}, options_.compute)});
}

// Whole 4-bit units share one buffer: each is unpacked when it is used, not earlier.
void FrozenUnits::make_buffers() {
  const int ranks = by_ranges() ? options_.shards->world_size() : 1;
  std::vector<int64_t> sizes, bytes;
  bool packs = false;
  for (const auto& state : states_) {
    const bool packed = state.nf4 != nullptr;
    packs = packs || packed;
    sizes.push_back(packed || by_ranges() ? state.unit->padded_numel(ranks) : 0);
    bytes.push_back(packed ? Nf4Sizes(*state.unit, ranks).whole_bytes() : 0);
  }
  if (units_.empty() || (!packs && !by_ranges())) return;
  const size_t count = by_ranges() ? 2 + options_.resident_units : 1;
  buffers_.emplace(units_, std::move(sizes), count, options_.compute, trace::Track::kParameters);
  if (packs && by_ranges()) {
    packed_.emplace(units_, std::move(bytes), 2, options_.compute.dtype(at::kByte),
                    trace::Track::kParameters);
  }
}

void FrozenUnits::prefetch(size_t unit) {
  if (by_ranges() && options_.prefetch) begin_gather(unit);
}

at::Tensor FrozenUnits::gather(size_t unit) {
  if (states_[unit].nf4) return unpacked(unit);
  if (!by_ranges()) return states_[unit].master;
  begin_gather(unit);
  finish_gather(unit);
  return buffers_->acquire(unit);
}

at::Tensor FrozenUnits::unpacked(size_t unit) {
  if (buffers_->is_acquired(unit)) return buffers_->acquire(unit);
  const Nf4Unit& nf4 = *states_[unit].nf4;
  if (by_ranges()) {
    begin_gather(unit);
    finish_gather(unit);
  }
  const at::Tensor flat = buffers_->acquire(unit);
  nf4.unpack(by_ranges() ? packed_->acquire(unit) : nf4.range(), flat);
  if (by_ranges()) packed_->release(unit);
  return flat;
}

void FrozenUnits::release(size_t unit) {
  if (buffers_) buffers_->release(unit);
}

int64_t FrozenUnits::parameter_bytes() const {
  int64_t sum = 0;
  for (const auto& state : states_) {
    sum += state.nf4 ? state.nf4->nbytes() : static_cast<int64_t>(state.master.nbytes());
  }
  return sum;
}

int64_t FrozenUnits::buffer_bytes() const {
  return (buffers_ ? buffers_->nbytes() : 0) + (packed_ ? packed_->nbytes() : 0);
}

void FrozenUnits::begin_gather(size_t unit) {
  const UnitState& state = states_[unit];
  if (buffers_->is_acquired(unit) || (state.nf4 && packed_->is_acquired(unit))) return;
  const std::string& name = units_[unit].name();
  pending_[unit] =
      state.nf4
          ? options_.shards->all_gather(packed_->acquire(unit), state.nf4->range().view({-1}), name)
          : options_.shards->all_gather(buffers_->acquire(unit), state.master, name);
}

void FrozenUnits::finish_gather(size_t unit) {
  if (pending_[unit]) pending_[unit]->wait();
  pending_[unit].reset();
}

}  // namespace fastsft
