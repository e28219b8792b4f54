#pragma once

namespace fastsft::cuda {

// A master and its copy (ops/master/master.h), as kernels take them: ops/master/master_access.cuh.
struct MasterArgs {
  void* values;  // float32, or int16: the lower half of a split master
  void* copy;    // bfloat16, or float16 of a whole master; null: none
  bool split, half_copy;
};

}  // namespace fastsft::cuda
