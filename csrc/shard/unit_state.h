#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shard/nf4_unit.h"
#include "shard/optimizer_state.h"
#include "shard/param_unit.h"

namespace fastsft {

// The part that this rank owns: elements [begin, end) of the unit's padded flat buffer. If a
// strategy replicates, begin = 0 and end = padded numel.
struct UnitState {
  const ParamUnit* unit = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  // Master weights: float32, or int16 lower halves if they are split (ops/master/master.h). Of a
  // frozen unit: its weights in the compute dtype.
  at::Tensor master;
  at::Tensor high = {};  // upper halves (the bfloat16 compute range); undefined if not split
  std::shared_ptr<const StateSpecs> specs = {};  // tensors of the optimizer state; null: none
  std::vector<at::Tensor> values = {};           // flat tensors, in the order of `specs`
  std::shared_ptr<Nf4Unit> nf4 = {};             // the 4-bit linears, before `begin`; null: none

  bool split() const { return high.defined(); }
  ElementRange range() const { return {begin, end}; }
  const StateSpecs& kept() const {
    static const StateSpecs none;
    return specs ? *specs : none;
  }
};

// Functions for master weights, split or not (rule: ops/master/master.h).

// Returns the masters in float32 on their device; split halves are joined. `range`: elements of the
// unit, inside the state's range.
at::Tensor read_master(const UnitState& state);
at::Tensor read_master(const UnitState& state, const ElementRange& range);
// Writes `values` (flat, any floating dtype, any device) to the master, from element `begin` of the
// state's range on. Of a split master both halves are written.
void write_master(const UnitState& state, int64_t begin, const at::Tensor& values);

// Rounds `master` (float32) into `copy` (bfloat16 or float16), as adamw does.
void round_master(const at::Tensor& master, const at::Tensor& copy);

}  // namespace fastsft
