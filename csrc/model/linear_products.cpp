#include "model/linear_products.h"

#include "model/fp8_products.h"
#include "ops/bias/bias.h"
#include "ops/gemm/gemm.h"

namespace fastsft {
namespace {

Fp8Operands fp8_operands(ActivationBuffers& buffers) {
  return {buffers.get(Buffer::kFp8Rows), buffers.get(Buffer::kFp8RowScales),
          buffers.get(Buffer::kFp8Weight), buffers.get(Buffer::kFp8WeightScales)};
}

}  // namespace

void LinearProducts::forward(const at::Tensor& x, const ParamRef& ref, const at::Tensor& y) const {
  const at::Tensor weight = ref.view(weights_);
  if (!refs_.in_fp8) return gemm(x, weight, y, false, true, 0.0);
  fp8_product(context_.fp8, fp8_operands(context_.buffers), x, weight, std::nullopt, y);
}

void LinearProducts::forward_add(const at::Tensor& x, const ParamRef& ref, const at::Tensor& addend,
                                 const at::Tensor& y) const {
  const at::Tensor weight = ref.view(weights_);
  if (!refs_.in_fp8) return gemm_add(x, weight, addend, y, false, true);
  fp8_product(context_.fp8, fp8_operands(context_.buffers), x, weight, addend, y);
}

void LinearProducts::backward(const at::Tensor& grad_y, const ParamRef& ref,
                              const at::Tensor& grad_x) const {
  const at::Tensor weight = ref.view(weights_);
  if (!refs_.in_fp8) return gemm(grad_y, weight, grad_x, false, false, 0.0);
  fp8_product_backward(context_.fp8, fp8_operands(context_.buffers), grad_y, weight, grad_x);
}

void accumulate(UnitGradient* gradient, const ParamRef& ref, const at::Tensor& grad_y,
                const at::Tensor& x) {
  if (!ref.trained) return;
  gemm(grad_y, x, ref.view(*gradient), true, false, ref.begin_write(gradient));
}

void accumulate(UnitGradient* gradient, const std::optional<ParamRef>& bias,
                const at::Tensor& grad_y) {
  if (!bias || !bias->trained) return;
  bias_backward(grad_y, bias->view(*gradient), bias->begin_write(gradient));
}

}  // namespace fastsft
