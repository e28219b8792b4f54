#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft::cpu {

// float32 memory that one op of this thread uses while it runs: what was lent, where that is
// enough, else its own. Ops that hold some call no other op that does. A copy takes from the same
// memory, from the same place on.
class Scratch {
 public:
  explicit Scratch(int64_t numel);

  // The next part of it, with any content.
  at::Tensor take(at::IntArrayRef sizes);
  // `from` in float32, its rows or columns as close to each other as they are there.
  at::Tensor widened(const at::Tensor& from);

 private:
  at::Tensor floats_;
  int64_t used_ = 0;
};

// Lends `floats` (1-D float32) to the ops that this thread calls from here to the end of the scope,
// so that they allocate nothing.
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
