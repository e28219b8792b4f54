#include "model/product_input.h"

#include "ops/rms_norm/rms_norm.h"
#include "ops/swiglu/swiglu.h"

namespace fastsft {

std::optional<Fp8Matrix> ProductInputs::memory_for(const at::Tensor& out) const {
  if (!refs_.in_fp8 || !context_.fp8.rowwise()) return std::nullopt;
  return fp8_row_memory(context_.buffers).matrix(out.size(0), out.size(1));
}

ProductInput ProductInputs::norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                 const ParamRef& weight, const std::optional<at::Tensor>& sum,
                                 const at::Tensor& out, const at::Tensor& rstd, bool keep) const {
  const at::Tensor w = weight.view(weights_);
  const double eps = context_.config.rms_norm_eps, offset = context_.config.norm_offset;
  const std::optional<Fp8Matrix> made = memory_for(out);
  if (made) {
    rms_norm_fp8(x, residual, w, eps, sum, out, rstd, made->values, made->scales,
                 /*power_of_2=*/true, keep, offset);
  } else {
    rms_norm(x, residual, w, eps, sum, out, rstd, offset);
  }
  return {out, made};
}

ProductInput ProductInputs::swiglu(const at::Tensor& gate_up, const at::Tensor& out,
                                   bool keep) const {
  const bool gelu = context_.config.gelu;
  const std::optional<Fp8Matrix> made = memory_for(out);
  if (made) {
    swiglu_fp8(gate_up, out, made->values, made->scales, /*power_of_2=*/true, keep, gelu);
  } else {
    fastsft::swiglu(gate_up, out, gelu);
  }
  return {out, made};
}

Fp8Memory fp8_row_memory(ActivationBuffers& buffers) {
  return {buffers.get(Buffer::kFp8Rows), buffers.get(Buffer::kFp8RowScales)};
}

}  // namespace fastsft
