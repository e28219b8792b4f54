#include "model/linear_products.h"

#include "model/fp8_products.h"
#include "model/fp8_weights.h"
#include "ops/bias/bias.h"
#include "ops/gemm/gemm.h"

namespace fastsft {
namespace {

Fp8Memory memory_of_columns(ActivationBuffers& buffers) {
  return {buffers.get(Buffer::kFp8Columns), buffers.get(Buffer::kFp8ColumnScales)};
}

Fp8Memory memory_of_weight(ActivationBuffers& buffers) {
  return {buffers.get(Buffer::kFp8Weight), buffers.get(Buffer::kFp8WeightScales)};
}

}  // namespace

Fp8Matrix LinearProducts::forward_weight(const ParamRef& ref) const {
  if (refs_.fp8_weights) return refs_.fp8_weights->forward(ref, weights_);
  const Fp8Matrix made = memory_of_weight(context_.buffers).matrix(ref.rows, ref.columns);
  fp8_forward_weight(context_.fp8, ref.view(weights_), made);
  return made;
}

Fp8Matrix LinearProducts::backward_weight(const ParamRef& ref) const {
  if (refs_.fp8_weights) return refs_.fp8_weights->backward(ref, weights_);
  const Fp8Matrix made = memory_of_weight(context_.buffers).matrix(ref.columns, ref.rows);
  fp8_backward_weight(context_.fp8, ref.view(weights_), made);
  return made;
}

void LinearProducts::multiply(const ProductInput& x, const ParamRef& ref,
                              const std::optional<at::Tensor>& addend, const at::Tensor& y) const {
  const Fp8Matrix input = x.quantised
                              ? *x.quantised
                              : fp8_input(context_.fp8, fp8_row_memory(context_.buffers), x.values);
  fp8_product(context_.fp8, input, forward_weight(ref), addend, y);
}

void LinearProducts::forward(const ProductInput& x, const ParamRef& ref,
                             const at::Tensor& y) const {
  if (refs_.in_fp8) return multiply(x, ref, std::nullopt, y);
  gemm(x.values, ref.view(weights_), y, false, true, 0.0);
}

void LinearProducts::forward_add(const ProductInput& x, const ParamRef& ref,
                                 const at::Tensor& addend, const at::Tensor& y) const {
  if (refs_.in_fp8) return multiply(x, ref, addend, y);
  gemm_add(x.values, ref.view(weights_), addend, y, false, true);
}

void LinearProducts::backward(const at::Tensor& grad_y, const ParamRef& ref,
                              const at::Tensor& grad_x) const {
  if (!refs_.in_fp8) return gemm(grad_y, ref.view(weights_), grad_x, false, false, 0.0);
  fp8_product_backward(context_.fp8, fp8_row_memory(context_.buffers), grad_y, backward_weight(ref),
                       grad_x);
}

void LinearProducts::accumulate(UnitGradient* gradient, const ParamRef& ref,
                                const at::Tensor& grad_y, const at::Tensor& x) const {
  if (!refs_.in_fp8 || !context_.fp8.wgrad || !ref.trained)
    return fastsft::accumulate(gradient, ref, grad_y, x);
  fp8_weight_gradient(context_.fp8, fp8_row_memory(context_.buffers),
                      memory_of_columns(context_.buffers), grad_y, x, ref.view(*gradient),
                      ref.begin_write(gradient));
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
