#include "ops/cpu/scratch.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <utility>

namespace fastsft::cpu {
namespace {

at::Tensor& lent() {
  thread_local at::Tensor floats;
  return floats;
}

}  // namespace

Scratch::Scratch(int64_t numel) {
  const at::Tensor& given = lent();
  const bool enough = given.defined() && given.numel() >= numel;
  floats_ = enough ? given : at::empty({numel}, at::TensorOptions().dtype(at::kFloat));
}

at::Tensor Scratch::take(at::IntArrayRef sizes) {
  const int64_t numel = c10::multiply_integers(sizes);
  const at::Tensor part = floats_.narrow(0, used_, numel).view(sizes);
  used_ += numel;
  return part;
}

at::Tensor Scratch::widened(const at::Tensor& from) {
  const bool by_columns = from.stride(0) < from.stride(1);
  at::Tensor to = by_columns ? take({from.size(1), from.size(0)}).t() : take(from.sizes());
  to.copy_(from);
  return to;
}

ScratchLoan::ScratchLoan(at::Tensor floats) : before_(std::exchange(lent(), std::move(floats))) {}

ScratchLoan::~ScratchLoan() { lent() = std::move(before_); }

}  // namespace fastsft::cpu
