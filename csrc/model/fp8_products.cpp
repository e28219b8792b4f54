#include "model/fp8_products.h"

#include <algorithm>

#include "core/error.h"
#include "model/linears.h"
#include "ops/fp8/fp8.h"
#include "ops/gemm/scaled_gemm.h"

namespace fastsft {
namespace {

Fp8Matrix quantise_rows(const Fp8Recipe& recipe, const Fp8Memory& memory, const at::Tensor& x,
                        bool e5m2) {
  const Fp8Matrix made = memory.matrix(x.size(0), x.size(1), e5m2);
  fp8_quantize(x, recipe.rowwise(), recipe.rowwise(), made.values, made.scales);
  return made;
}

Fp8Matrix quantise_columns(const Fp8Recipe& recipe, const Fp8Memory& memory, const at::Tensor& x,
                           bool e5m2) {
  const Fp8Matrix made = memory.matrix(x.size(1), fp8_padded(x.size(0)), e5m2);
  fp8_quantize_transposed(x, recipe.rowwise(), recipe.rowwise(), made.values, made.scales);
  return made;
}

// cuBLASLt multiplies 8-bit matrices of these sizes.
void check_fp8_sizes(const ModelConfig& config) {
  for (const Linear& each : linears_of(config)) {
    if (each.group == LinearGroup::kHead) continue;
    require(each.inputs % kScaledGemmMultiple == 0 && each.outputs % kScaledGemmMultiple == 0,
            "--fp8: expected linear layers whose sizes are multiples of ", kScaledGemmMultiple,
            ", got ", each.name, " with ", each.inputs, " inputs and ", each.outputs,
            " outputs; train without --fp8");
  }
}

void multiply(const Fp8Recipe& recipe, const Fp8Matrix& a, const Fp8Matrix& b,
              const std::optional<at::Tensor>& addend, const at::Tensor& out,
              bool fast_accumulation) {
  scaled_gemm(a.values, a.scales, b.values, b.scales, addend.value_or(out), out, addend ? 1.0 : 0.0,
              recipe.rowwise(), fast_accumulation);
}

}  // namespace

Fp8Recipe Fp8Recipe::of(const StateOptions& state, const ModelConfig& config) {
  if (state.fp8 == Fp8Scaling::kNone) return {};
  require(!config.is_mixture(), "fp8: expected a model without experts, got ", config.model_type,
          ", whose grouped products are in bfloat16; train without --fp8");
  const Fp8Recipe recipe = {.scaling = state.fp8,
                            .format = state.fp8_format,
                            .wgrad = state.fp8_wgrad,
                            .first_layer = state.num_layers_at_start_in_bf16,
                            .end_layer = config.num_layers - state.num_layers_at_end_in_bf16};
  require(recipe.first_layer < recipe.end_layer,
          "num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16: expected fewer than the ",
          config.num_layers, " blocks together, got ", state.num_layers_at_start_in_bf16, " and ",
          state.num_layers_at_end_in_bf16, "; train without --fp8");
  check_fp8_sizes(config);
  return recipe;
}

Fp8Matrix Fp8Memory::matrix(int64_t rows, int64_t columns, bool e5m2) const {
  return {values.narrow(0, 0, rows * columns)
              .view(e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn)
              .view({rows, columns}),
          scales.narrow(0, 0, rows)};
}

void fp8_forward_weight(const Fp8Recipe& recipe, const at::Tensor& weight, const Fp8Matrix& out) {
  fp8_quantize(weight, recipe.rowwise(), recipe.rowwise(), out.values, out.scales);
}

void fp8_backward_weight(const Fp8Recipe& recipe, const at::Tensor& weight, const Fp8Matrix& out) {
  fp8_quantize_transposed(weight, recipe.rowwise() && recipe.wgrad, recipe.rowwise(), out.values,
                          out.scales);
}

Fp8Matrix fp8_input(const Fp8Recipe& recipe, const Fp8Memory& memory, const at::Tensor& x) {
  return quantise_rows(recipe, memory, x, false);
}

void fp8_product(const Fp8Recipe& recipe, const Fp8Matrix& x, const Fp8Matrix& weight,
                 const std::optional<at::Tensor>& addend, const at::Tensor& out) {
  multiply(recipe, x, weight, addend, out, /*fast_accumulation=*/true);
}

void fp8_product_backward(const Fp8Recipe& recipe, const Fp8Memory& memory,
                          const at::Tensor& grad_y, const Fp8Matrix& weight,
                          const at::Tensor& grad_x) {
  multiply(recipe, quantise_rows(recipe, memory, grad_y, recipe.hybrid()), weight, std::nullopt,
           grad_x, /*fast_accumulation=*/false);
}

void fp8_weight_gradient(const Fp8Recipe& recipe, const Fp8Memory& of_grad, const Fp8Memory& of_x,
                         const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& grad_w,
                         double beta) {
  const Fp8Matrix a = quantise_columns(recipe, of_grad, grad_y, recipe.hybrid());
  const Fp8Matrix b = quantise_columns(recipe, of_x, x, false);
  scaled_gemm(a.values, a.scales, b.values, b.scales, grad_w, grad_w, beta, recipe.rowwise(),
              /*fast_accumulation=*/false);
}

int64_t fp8_padded(int64_t tokens) {
  return (tokens + kScaledGemmMultiple - 1) / kScaledGemmMultiple * kScaledGemmMultiple;
}

}  // namespace fastsft
