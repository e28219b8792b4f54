#pragma once

namespace fastsft {

// What every optimizer's op takes as `param` and `compute_copy`, flat tensors of one size.
// `compute_copy` receives the parameters rounded to nearest: bfloat16 with ties away from zero,
// float16 with ties to even. `param` is the float32 master, or (int16) the lower 16 bits of a split
// one whose upper half is `compute_copy` (bfloat16): master bits = (copy << 16) + sign-extended
// param, the same bits as the unsplit.

namespace cuda {

// Both, as kernels take them (ops/master/master_access.cuh).
struct MasterArgs {
  void* values;  // float32, or int16: the lower half of a split master
  void* copy;    // bfloat16, or float16 of a whole master; null: none
  bool split, half_copy;
};

}  // namespace cuda
}  // namespace fastsft
