#include "ops/cpu/float_gemm.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace at::native {
// Exported by libtorch_cpu; its header is not shipped.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                   float alpha);
}  // namespace at::native

namespace fastsft::cpu {

void float_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  if (out.numel() == 0) return;
  at::Tensor result = out;
  if (a.size(1) == 0) {
    if (beta == 0)
      result.zero_();
    else
      result.mul_(beta);
  } else if (at::globalContext().userEnabledMkldnn() && at::Context::hasMKLDNN()) {
    at::native::mkldnn_matmul(a, b, result, beta, 1.0f);
  } else if (beta == 0) {
    at::mm_out(result, a, b);
  } else {
    at::addmm_out(result, result, a, b, beta, 1);
  }
}

}  // namespace fastsft::cpu
