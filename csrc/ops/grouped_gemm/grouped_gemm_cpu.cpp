#include "ops/grouped_gemm/grouped_gemm.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/scratch.h"
#include "ops/gemm/float_gemm.h"
#include "ops/grouped_gemm/grouped_memory.h"

namespace fastsft {
namespace {

// The rows [begin, end) of one expert.
struct ExpertRows {
  int64_t expert, begin, end;

  at::Tensor of(const at::Tensor& matrix) const { return matrix.narrow(0, begin, end - begin); }
};

// Returns all experts' rows. Throws unless the offsets rise from 0 to `rows`.
std::vector<ExpertRows> groups_of(const char* op, const at::Tensor& offsets, int64_t rows) {
  const int32_t* offset = offsets.const_data_ptr<int32_t>();
  std::vector<ExpertRows> groups;
  for (int64_t expert = 0; expert + 1 < offsets.size(0); ++expert) {
    const int64_t begin = offset[expert], end = offset[expert + 1];
    const bool last = expert + 2 == offsets.size(0);
    TORCH_CHECK_VALUE((expert == 0 ? begin == 0 : begin >= 0) && begin <= end &&
                          (last ? end == rows : end <= rows),
                      op, ": offsets must rise from 0 to ", rows, ", got ", begin, " and ", end,
                      " for group ", expert);
    groups.push_back({expert, begin, end});
  }
  return groups;
}

int64_t most_rows(const std::vector<ExpertRows>& groups) {
  int64_t most = 0;
  for (const ExpertRows& group : groups) most = std::max(most, group.end - group.begin);
  return most;
}

// Calls run(begin, end) for `tasks` equal parts of [0, size), one a thread. Products inside
// run on that thread alone and find `floats` of scratch memory each.
template <typename Run>
void for_each_part(int64_t size, int64_t floats, const Run& run) {
  const int64_t tasks = at::get_num_threads();
  cpu::Scratch scratch(tasks * floats);
  std::vector<at::Tensor> parts;
  for (int64_t task = 0; task < tasks; ++task) parts.push_back(scratch.take({floats}));
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const cpu::ScratchLoan loan(parts[static_cast<size_t>(task)]);
      run(size * task / tasks, size * (task + 1) / tasks);
    }
  });
}

// Threads share the rows, not the experts, since these differ in size.
void grouped_gemm_cpu(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets,
                      const at::Tensor& out, bool transpose) {
  check_grouped_gemm(x, weights, offsets, out, transpose);
  const auto groups = groups_of("grouped_gemm", offsets, x.size(0));
  const int64_t rows = std::min(most_rows(groups), x.size(0) / at::get_num_threads() + 1);
  const int64_t floats = x.scalar_type() == at::kFloat
                             ? 0
                             : cpu::grouped_floats(rows, x.size(1), out.size(1), out.scalar_type());
  for_each_part(x.size(0), floats, [&](int64_t begin, int64_t end) {
    for (const ExpertRows& group : groups) {
      const ExpertRows part{group.expert, std::max(begin, group.begin), std::min(end, group.end)};
      if (part.begin >= part.end) continue;
      const at::Tensor weight = weights.select(0, group.expert);
      cpu::multiply_once(part.of(x), transpose ? weight.t() : weight, part.of(out), 0.0f);
    }
  });
}

// Threads share the rows of each expert's gradient.
void grouped_weight_gradient_cpu(const at::Tensor& grad_y, const at::Tensor& x,
                                 const at::Tensor& offsets, const at::Tensor& grad_weights,
                                 double beta) {
  check_grouped_weight_gradient(grad_y, x, offsets, grad_weights, beta);
  const auto groups = groups_of("grouped_weight_gradient", offsets, x.size(0));
  const int64_t columns = grad_y.size(1) / at::get_num_threads() + 1;
  const int64_t floats =
      x.scalar_type() == at::kFloat
          ? 0
          : cpu::grouped_floats(columns, most_rows(groups), x.size(1), grad_weights.scalar_type());
  for_each_part(grad_y.size(1), floats, [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    for (const ExpertRows& group : groups) {
      const at::Tensor part = group.of(grad_y).narrow(1, begin, end - begin);
      const at::Tensor out = grad_weights.select(0, group.expert).narrow(0, begin, end - begin);
      cpu::multiply_once(part.t(), group.of(x), out, static_cast<float>(beta));
    }
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("grouped_gemm", &grouped_gemm_cpu);
  m.impl("grouped_weight_gradient", &grouped_weight_gradient_cpu);
}

}  // namespace fastsft
