#pragma once

namespace fastsft {

// `param` and `compute_copy` are flat tensors of one size, arguments of every optimizer op.
// `compute_copy` receives the parameters rounded to nearest: bfloat16 with ties away from zero,
// float16 with ties to even. `param` is either the float32 master or, for a split master, its lower
// 16 bits (int16). The upper half is then `compute_copy` (bfloat16): master bits = (copy << 16) +
// sign-extended param. A split master has the same bits as an unsplit master.

namespace cuda {

// param and compute_copy as kernel arguments (ops/master/master_access.cuh).
struct MasterArgs {
  void* values;  // float32, or int16: the lower half of a split master
  void* copy;    // bfloat16, or float16 next to a float32 master; null: no copy
  bool split, half_copy;
};

}  // namespace cuda
}  // namespace fastsft
