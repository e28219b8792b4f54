#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shard/nf4_unit.h"
#include "shard/optimizer_state.h"
#include "shard/param_unit.h"

namespace fastsft {

// What one rank owns of one unit for the optimizer: elements [begin, end) of the padded flat
// buffer. When a strategy replicates, begin = 0 and end = padded numel.
struct UnitState {
  const ParamUnit* unit = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  // float32, or int16: the lower half of a split one (ops/master/master.h). Of a unit that nothing
  // updates, what is computed with; it has none of what follows but `nf4`.
  at::Tensor master;
  at::Tensor high = {};  // its upper half, the bfloat16 compute range; undefined unless it is split
  std::shared_ptr<const StateSpecs> specs = {};  // what the optimizer keeps; null: nothing
  std::vector<at::Tensor> values = {};           // flat, one for each of `specs`
  std::shared_ptr<Nf4Unit> nf4 =
      {};  // has the elements before `begin`; null: the dtypes are as above

  bool split() const { return high.defined(); }
  ElementRange range() const { return {begin, end}; }
  const StateSpecs& kept() const {
    static const StateSpecs none;
    return specs ? *specs : none;
  }
};

// The master weights of a state, whether they are split or not (rule: ops/master/master.h).

// float32 where the master lives: itself, or joined from its halves. `range`: of the unit's
// elements, which the state must hold.
at::Tensor read_master(const UnitState& state);
at::Tensor read_master(const UnitState& state, const ElementRange& range);
// `values` (flat, any floating dtype, any device) become elements [begin, begin + numel) of the
// range; of a split master both halves are written.
void write_master(const UnitState& state, int64_t begin, const at::Tensor& values);

// `copy` (bfloat16 or float16) receives `master` (float32) as adamw would write it.
void round_master(const at::Tensor& master, const at::Tensor& copy);

}  // namespace fastsft
