#include "ops/cpu/row_parts.h"

#include <ATen/Parallel.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

namespace fastsft::cpu {

void sum_row_parts(int64_t rows, const at::Tensor& to, float beta, const AddRows& add) {
  const int64_t tasks = at::get_num_threads(), size = to.numel();
  const at::Tensor parts = at::zeros({tasks, size}, to.options());
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      add(rows * task / tasks, rows * (task + 1) / tasks, parts.data_ptr<float>() + task * size);
    }
  });
  if (beta == 0)
    to.zero_();
  else
    to.mul_(beta);
  to.add_(parts.sum(0).view(to.sizes()));
}

}  // namespace fastsft::cpu
