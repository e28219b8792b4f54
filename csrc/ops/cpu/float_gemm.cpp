#include "ops/cpu/float_gemm.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

namespace at::native {
// Exported by libtorch_cpu; its header is not shipped.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                   float alpha);
}  // namespace at::native

namespace fastsft::cpu {
namespace {

// torch refuses this path on x86 processors without AVX-512, for float32 too: asked once by trying.
bool onednn_takes_float() {
  static const bool takes = [] {
    const at::Tensor one = at::ones({1, 1}, at::TensorOptions().dtype(at::kFloat));
    try {
      at::native::mkldnn_matmul(one, one, at::empty_like(one), 0.0f, 1.0f);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }();
  return takes && at::globalContext().userEnabledMkldnn();
}

}  // namespace

void float_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  if (out.numel() == 0) return;
  at::Tensor result = out;
  if (a.size(1) == 0) {
    if (beta == 0)
      result.zero_();
    else
      result.mul_(beta);
  } else if (onednn_takes_float()) {
    at::native::mkldnn_matmul(a, b, result, beta, 1.0f);
  } else if (beta == 0) {
    at::mm_out(result, a, b);
  } else {
    at::addmm_out(result, result, a, b, beta, 1);
  }
}

}  // namespace fastsft::cpu
