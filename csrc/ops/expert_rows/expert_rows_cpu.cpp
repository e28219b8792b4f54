#include "ops/expert_rows/expert_rows.h"

#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"

namespace fastsft::cpu {
namespace {

// Adds weight * row to `sum`.
template <typename T>
FASTSFT_INLINE void add_weighted(const T* row, float weight, float* sum, int64_t width) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) sum[j] += weight * to_float(row[j]);
}

// A token's rows and their sum, which `sum` [width] holds.
template <typename T>
FASTSFT_INLINE void combine(const T* grouped, const int32_t* rows, const T* weights, int64_t chosen,
                            const T* addend, T* out, int64_t width, float* sum) {
  std::fill(sum, sum + width, 0.0f);
  for (int64_t i = 0; i < chosen; ++i) {
    add_weighted(grouped + rows[i] * width, weights == nullptr ? 1.0f : to_float(weights[i]), sum,
                 width);
  }
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) store(&out[j], to_float(addend[j]) + sum[j]);
}

// Returns the gradient of the row's weight.
template <typename T>
FASTSFT_INLINE float weighted_backward(T* grad_out, T* gate_up, float weight, int64_t width) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t j = 0; j < width; ++j) {
    const float gate = to_float(gate_up[j]), up = to_float(gate_up[width + j]);
    const float grad = to_float(grad_out[j]), s = sigmoid_approx(gate), g = weight * grad;
    dot += grad * (gate * s * up);
    store(&gate_up[j], g * up * s * (1.0f + gate * (1.0f - s)));
    store(&gate_up[width + j], g * gate * s);
    store(&grad_out[j], weight * (gate * s * up));
  }
  return dot;
}

FASTSFT_CLONES void combine_token(const float* grouped, const int32_t* rows, const float* weights,
                                  int64_t chosen, const float* addend, float* out, int64_t width,
                                  float* sum) {
  combine(grouped, rows, weights, chosen, addend, out, width, sum);
}

FASTSFT_CLONES void combine_token(const bfloat16* grouped, const int32_t* rows,
                                  const bfloat16* weights, int64_t chosen, const bfloat16* addend,
                                  bfloat16* out, int64_t width, float* sum) {
  combine(grouped, rows, weights, chosen, addend, out, width, sum);
}

FASTSFT_CLONES void combine_token(const float16* grouped, const int32_t* rows,
                                  const float16* weights, int64_t chosen, const float16* addend,
                                  float16* out, int64_t width, float* sum) {
  combine(grouped, rows, weights, chosen, addend, out, width, sum);
}

FASTSFT_CLONES float weighted_backward_row(float* grad_out, float* gate_up, float weight,
                                           int64_t width) {
  return weighted_backward(grad_out, gate_up, weight, width);
}

FASTSFT_CLONES float weighted_backward_row(bfloat16* grad_out, bfloat16* gate_up, float weight,
                                           int64_t width) {
  return weighted_backward(grad_out, gate_up, weight, width);
}

FASTSFT_CLONES float weighted_backward_row(float16* grad_out, float16* gate_up, float weight,
                                           int64_t width) {
  return weighted_backward(grad_out, gate_up, weight, width);
}

// Throws unless all elements are from 0 to below `limit`.
void check_below(const char* op, const char* name, const at::Tensor& index, int64_t limit) {
  const int32_t* at = index.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < index.numel(); ++i) {
    TORCH_CHECK_VALUE(at[i] >= 0 && at[i] < limit, op, ": element ", i, " of ", name, " is ", at[i],
                      ", expected a number below ", limit);
  }
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void gather_rows_cpu(const at::Tensor& x, const at::Tensor& pairs, const at::Tensor& out) {
  check_gather_rows(x, pairs, out);
  const int64_t rows = out.size(0);
  if (rows == 0) return;
  cpu::check_below("gather_rows", "pairs", pairs, rows);
  const int64_t chosen = rows / x.size(0);
  const int32_t* pair = pairs.const_data_ptr<int32_t>();
  const auto bytes = static_cast<int64_t>(x.size(1) * x.element_size());
  const char* from = static_cast<const char*>(x.const_data_ptr());
  char* to = static_cast<char*>(out.data_ptr());
  at::parallel_for(0, rows, cpu::rows_per_task(x.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to + row * bytes, from + pair[row] / chosen * bytes, static_cast<size_t>(bytes));
    }
  });
}

void combine_rows_cpu(const at::Tensor& grouped, const at::Tensor& rows,
                      const std::optional<at::Tensor>& weights, const at::Tensor& addend,
                      const at::Tensor& out) {
  check_combine_rows(grouped, rows, weights, addend, out);
  cpu::check_below("combine_rows", "rows", rows, grouped.size(0));
  const int64_t width = out.size(1), chosen = rows.size(1);
  const int32_t* row = rows.const_data_ptr<int32_t>();
  cpu::dispatch(out.scalar_type(), [&]<typename T>() {
    const T* weight = weights ? weights->const_data_ptr<T>() : nullptr;
    const int64_t task = cpu::rows_per_task(width * chosen);
    at::parallel_for(0, out.size(0), task, [&](int64_t begin, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(width));
      for (int64_t t = begin; t < end; ++t) {
        cpu::combine_token(grouped.const_data_ptr<T>(), row + t * chosen,
                           weight == nullptr ? nullptr : weight + t * chosen, chosen,
                           addend.const_data_ptr<T>() + t * width, out.data_ptr<T>() + t * width,
                           width, sum.data());
      }
    });
  });
}

void expert_swiglu_backward_cpu(const at::Tensor& grad_out, const at::Tensor& gate_up,
                                const at::Tensor& weights, const at::Tensor& pairs,
                                const at::Tensor& grad_weights) {
  check_expert_swiglu_backward(grad_out, gate_up, weights, pairs, grad_weights);
  const int64_t rows = grad_out.size(0), width = grad_out.size(1);
  cpu::check_below("expert_swiglu_backward", "pairs", pairs, rows);
  const int32_t* pair = pairs.const_data_ptr<int32_t>();
  float* grad_weight = grad_weights.data_ptr<float>();
  cpu::dispatch(grad_out.scalar_type(), [&]<typename T>() {
    at::parallel_for(0, rows, cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float weight = cpu::to_float(weights.const_data_ptr<T>()[pair[row]]);
        grad_weight[pair[row]] =
            cpu::weighted_backward_row(grad_out.data_ptr<T>() + row * width,
                                       gate_up.data_ptr<T>() + 2 * row * width, weight, width);
      }
    });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("gather_rows", &gather_rows_cpu);
  m.impl("combine_rows", &combine_rows_cpu);
  m.impl("expert_swiglu_backward", &expert_swiglu_backward_cpu);
}

}  // namespace fastsft
