#include "ops/routing/routing.h"

#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"

namespace fastsft::cpu {
namespace {

// The sizes of a router's tensors.
struct Router {
  int64_t experts, chosen;
  bool normalize;
};

// Sets p = softmax(logits).
template <typename T>
FASTSFT_INLINE void probabilities(const T* logits, float* p, int64_t experts) {
  float highest = to_float(logits[0]), sum = 0;
  for (int64_t e = 0; e < experts; ++e) highest = std::max(highest, to_float(logits[e]));
  for (int64_t e = 0; e < experts; ++e) p[e] = exp_approx(to_float(logits[e]) - highest);
  for (int64_t e = 0; e < experts; ++e) sum += p[e];
  for (int64_t e = 0; e < experts; ++e) p[e] /= sum;
}

// Returns the largest element's place, the first one of equals. NaN counts as 0; elements of -1 are
// taken.
FASTSFT_INLINE int64_t largest(const float* p, int64_t experts) {
  int64_t best = 0;
  float most = -1;
  for (int64_t e = 0; e < experts; ++e) {
    const float value = p[e] == p[e] ? p[e] : 0.0f;
    if (value > most) {
      most = value;
      best = e;
    }
  }
  return best;
}

template <typename T>
FASTSFT_INLINE void choose(const T* logits, T* weights, int32_t* chosen, int64_t rows,
                           const Router& router, float* p) {
  for (int64_t row = 0; row < rows; ++row) {
    probabilities(logits + row * router.experts, p, router.experts);
    float kept[kMostChosen];
    float sum = 0;
    for (int64_t i = 0; i < router.chosen; ++i) {
      const int64_t best = largest(p, router.experts);
      kept[i] = p[best];
      sum += kept[i];
      p[best] = -1;
      chosen[row * router.chosen + i] = static_cast<int32_t>(best);
    }
    for (int64_t i = 0; i < router.chosen; ++i) {
      store(&weights[row * router.chosen + i], router.normalize ? kept[i] / sum : kept[i]);
    }
  }
}

// With q, the probabilities as they become weights (0 for experts that were not chosen if they are
// normalized): grad_logits = q * (grad_weights - the sum of q * grad_weights).
template <typename T>
FASTSFT_INLINE void backward(const float* grad, const T* logits, const int32_t* chosen,
                             T* grad_logits, int64_t rows, const Router& router, float* p) {
  for (int64_t row = 0; row < rows; ++row, grad += router.chosen, chosen += router.chosen) {
    probabilities(logits + row * router.experts, p, router.experts);
    float sum = 0, dot = 0;
    for (int64_t i = 0; i < router.chosen; ++i) {
      sum += p[chosen[i]];
      dot += p[chosen[i]] * grad[i];
    }
    if (!router.normalize) sum = 1;
    T* to = grad_logits + row * router.experts;
    dot /= sum;
    for (int64_t e = 0; e < router.experts; ++e) store(&to[e], router.normalize ? 0 : -p[e] * dot);
    for (int64_t i = 0; i < router.chosen; ++i) {
      store(&to[chosen[i]], p[chosen[i]] / sum * (grad[i] - dot));
    }
  }
}

FASTSFT_CLONES void choose_rows(const float* logits, float* weights, int32_t* chosen, int64_t rows,
                                const Router& router, float* p) {
  choose(logits, weights, chosen, rows, router, p);
}

FASTSFT_CLONES void choose_rows(const bfloat16* logits, bfloat16* weights, int32_t* chosen,
                                int64_t rows, const Router& router, float* p) {
  choose(logits, weights, chosen, rows, router, p);
}

FASTSFT_CLONES void choose_rows(const float16* logits, float16* weights, int32_t* chosen,
                                int64_t rows, const Router& router, float* p) {
  choose(logits, weights, chosen, rows, router, p);
}

FASTSFT_CLONES void backward_rows(const float* grad, const float* logits, const int32_t* chosen,
                                  float* grad_logits, int64_t rows, const Router& router,
                                  float* p) {
  backward(grad, logits, chosen, grad_logits, rows, router, p);
}

FASTSFT_CLONES void backward_rows(const float* grad, const bfloat16* logits, const int32_t* chosen,
                                  bfloat16* grad_logits, int64_t rows, const Router& router,
                                  float* p) {
  backward(grad, logits, chosen, grad_logits, rows, router, p);
}

FASTSFT_CLONES void backward_rows(const float* grad, const float16* logits, const int32_t* chosen,
                                  float16* grad_logits, int64_t rows, const Router& router,
                                  float* p) {
  backward(grad, logits, chosen, grad_logits, rows, router, p);
}

// Throws unless all numbers of experts are below `experts`.
void check_numbers(const char* op, const at::Tensor& chosen_experts, int64_t experts) {
  const int32_t* chosen = chosen_experts.const_data_ptr<int32_t>();
  for (int64_t pair = 0; pair < chosen_experts.numel(); ++pair) {
    TORCH_CHECK_VALUE(chosen[pair] >= 0 && chosen[pair] < experts, op, ": expert ", chosen[pair],
                      " of pair ", pair, " is not below ", experts);
  }
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void route_tokens_cpu(const at::Tensor& logits, const at::Tensor& weights,
                      const at::Tensor& chosen_experts, bool normalize) {
  check_route_tokens(logits, weights, chosen_experts, normalize);
  const cpu::Router router{logits.size(1), weights.size(1), normalize};
  int32_t* chosen = chosen_experts.data_ptr<int32_t>();
  cpu::dispatch(logits.scalar_type(), [&]<typename T>() {
    const int64_t task = cpu::rows_per_task(router.experts * router.chosen);
    at::parallel_for(0, logits.size(0), task, [&](int64_t begin, int64_t end) {
      std::vector<float> p(static_cast<size_t>(router.experts));
      cpu::choose_rows(logits.const_data_ptr<T>() + begin * router.experts,
                       weights.data_ptr<T>() + begin * router.chosen,
                       chosen + begin * router.chosen, end - begin, router, p.data());
    });
  });
}

void route_tokens_backward_cpu(const at::Tensor& grad_weights, const at::Tensor& logits,
                               const at::Tensor& chosen_experts, const at::Tensor& grad_logits,
                               bool normalize) {
  check_route_tokens_backward(grad_weights, logits, chosen_experts, grad_logits, normalize);
  const cpu::Router router{logits.size(1), grad_weights.size(1), normalize};
  cpu::check_numbers("route_tokens_backward", chosen_experts, router.experts);
  const int32_t* chosen = chosen_experts.const_data_ptr<int32_t>();
  const float* grad = grad_weights.const_data_ptr<float>();
  cpu::dispatch(logits.scalar_type(), [&]<typename T>() {
    const int64_t task = cpu::rows_per_task(router.experts);
    at::parallel_for(0, logits.size(0), task, [&](int64_t begin, int64_t end) {
      std::vector<float> p(static_cast<size_t>(router.experts));
      const int64_t first = begin * router.chosen, at = begin * router.experts;
      cpu::backward_rows(grad + first, logits.const_data_ptr<T>() + at, chosen + first,
                         grad_logits.data_ptr<T>() + at, end - begin, router, p.data());
    });
  });
}

void group_pairs_cpu(const at::Tensor& chosen_experts, const at::Tensor& offsets,
                     const at::Tensor& pairs, const at::Tensor& rows) {
  check_group_pairs(chosen_experts, offsets, pairs, rows);
  const int64_t experts = offsets.size(0) - 1, count = chosen_experts.numel();
  cpu::check_numbers("group_pairs", chosen_experts, experts);
  const int32_t* chosen = chosen_experts.const_data_ptr<int32_t>();
  int32_t *offset = offsets.data_ptr<int32_t>(), *pair = pairs.data_ptr<int32_t>(),
          *row = rows.data_ptr<int32_t>();
  std::fill(offset, offset + experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++offset[chosen[i] + 1];
  for (int64_t e = 0; e < experts; ++e) offset[e + 1] += offset[e];
  std::vector<int32_t> next(offset, offset + experts);
  for (int64_t i = 0; i < count; ++i) {
    row[i] = next[static_cast<size_t>(chosen[i])]++;
    pair[row[i]] = static_cast<int32_t>(i);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("route_tokens", &route_tokens_cpu);
  m.impl("route_tokens_backward", &route_tokens_backward_cpu);
  m.impl("group_pairs", &group_pairs_cpu);
}

}  // namespace fastsft
