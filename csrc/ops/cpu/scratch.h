#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft::cpu {

// float32 scratch memory for one op on the current thread: the memory that ScratchLoan lends if it
// is large enough, otherwise a new allocation. An op that holds a Scratch must not call another op
// that makes one. A copy continues at the same position in the same memory.
class Scratch {
 public:
  explicit Scratch(int64_t numel);

  // Returns the next `sizes` floats, uninitialised.
  at::Tensor take(at::IntArrayRef sizes);
  // Returns a float32 copy of `from`, contiguous by rows or by columns like `from`.
  at::Tensor widened(const at::Tensor& from);

 private:
  at::Tensor floats_;
  int64_t used_ = 0;
};

// Lends `floats` (1-D float32) to the ops that this thread calls within the scope, so that they
// need not allocate.
class ScratchLoan {
 public:
  explicit ScratchLoan(at::Tensor floats);
  ~ScratchLoan();
  ScratchLoan(const ScratchLoan&) = delete;
  ScratchLoan& operator=(const ScratchLoan&) = delete;

 private:
  at::Tensor before_;
};

}  // namespace fastsft::cpu
