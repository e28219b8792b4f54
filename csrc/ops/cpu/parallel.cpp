#include "ops/cpu/parallel.h"

#include <ATen/ops/sum.h>

#include <array>

#include "ops/cpu/scratch.h"

namespace fastsft::cpu {

int64_t row_parts_floats(int64_t size, int64_t threads) { return (threads + 1) * size; }

void sum_row_parts(int64_t rows, const at::Tensor& to, float beta, const AddRows& add) {
  const int64_t tasks = at::get_num_threads(), size = to.numel();
  Scratch scratch(row_parts_floats(size, tasks));
  at::Tensor parts = scratch.take({tasks, size}), sum = scratch.take({size});
  parts.zero_();
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      add(rows * task / tasks, rows * (task + 1) / tasks, parts.data_ptr<float>() + task * size);
    }
  });
  if (beta == 0)
    to.zero_();
  else if (beta != 1)
    to.mul_(beta);
  at::sum_out(sum, parts, std::array<int64_t, 1>{0});
  to.add_(sum.view(to.sizes()));
}

}  // namespace fastsft::cpu
