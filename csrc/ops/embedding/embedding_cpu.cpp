#include "ops/embedding/embedding.h"

#include <torch/library.h>

#include <cstring>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"

namespace fastsft {
namespace {

void check_ids(const char* op, const at::Tensor& ids, int64_t vocab) {
  const int64_t* id = ids.data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i) {
    TORCH_CHECK_VALUE(id[i] >= 0 && id[i] < vocab, op, ": id ", id[i], " of token ", i,
                      " is not in a vocabulary of ", vocab);
  }
}

void embedding_cpu(const at::Tensor& weight, const at::Tensor& ids, const at::Tensor& out) {
  check_embedding(weight, ids, out);
  check_ids("embedding", ids, weight.size(0));
  const int64_t* id = ids.data_ptr<int64_t>();
  const auto row_bytes = static_cast<int64_t>(weight.size(1) * weight.element_size());
  const char* from = static_cast<const char*>(weight.data_ptr());
  char* to = static_cast<char*>(out.data_ptr());
  at::parallel_for(
      0, ids.size(0), cpu::rows_per_task(weight.size(1)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(to + i * row_bytes, from + id[i] * row_bytes, static_cast<size_t>(row_bytes));
        }
      });
}

// Each task owns a range of the vocabulary and reads all tokens, so no two tasks write the same
// row.
template <typename T>
void scatter_add(const at::Tensor& grad_out, const at::Tensor& ids, const at::Tensor& grad_weight) {
  const int64_t hidden = grad_weight.size(1), vocab = grad_weight.size(0);
  const int64_t* id = ids.data_ptr<int64_t>();
  const T* from = grad_out.data_ptr<T>();
  float* to = grad_weight.data_ptr<float>();
  const int64_t tasks = at::get_num_threads();
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    const int64_t low = vocab * first / tasks, high = vocab * last / tasks;
    for (int64_t i = 0; i < ids.size(0); ++i) {
      if (id[i] < low || id[i] >= high) continue;
      float* row = to + id[i] * hidden;
      for (int64_t j = 0; j < hidden; ++j) row[j] += cpu::to_float(from[i * hidden + j]);
    }
  });
}

void embedding_backward_cpu(const at::Tensor& grad_out, const at::Tensor& ids,
                            const at::Tensor& grad_weight) {
  check_embedding_backward(grad_out, ids, grad_weight);
  check_ids("embedding_backward", ids, grad_weight.size(0));
  cpu::dispatch(grad_out.scalar_type(),
                [&]<typename T>() { scatter_add<T>(grad_out, ids, grad_weight); });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("embedding", &embedding_cpu);
  m.impl("embedding_backward", &embedding_backward_cpu);
}

}  // namespace fastsft
