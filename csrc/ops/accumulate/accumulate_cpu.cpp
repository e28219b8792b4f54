#include <torch/library.h>

#include "ops/accumulate/accumulate.h"

namespace fastsft {
namespace {

void accumulate_cpu(const at::Tensor& total, const at::Tensor& x) {
  check_accumulate(total, x);
  total.add_(x);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("accumulate", &accumulate_cpu); }

}  // namespace fastsft
