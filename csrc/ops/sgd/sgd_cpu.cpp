#include "ops/sgd/sgd.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/cpu/flat_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/gradient/step_scalars.h"
#include "ops/master/master_piece.h"

namespace fastsft {
namespace {

using cpu::MasterPiece;

FASTSFT_CLONES void sgd_range(float* param, const float* grad, int64_t count, float scale, float lr,
                              float weight_decay) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    param[i] = param[i] - lr * (grad[i] * scale + weight_decay * param[i]);
  }
}

void sgd_cpu(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
             const at::Tensor& grad, const at::Tensor& scalars, double lr, double weight_decay) {
  check_sgd(param, compute_copy, grad, scalars, lr, weight_decay);
  const auto scale = static_cast<float>(scalars.data_ptr<double>()[kStepGradScale]);
  if (!std::isfinite(scale)) return;
  const auto update = [&](int64_t begin, int64_t size) {
    MasterPiece master(param, compute_copy, begin, size);
    std::array<float, MasterPiece::kSize> room;
    const float* wide = room.data();
    if (grad.scalar_type() == at::kFloat)
      wide = grad.data_ptr<float>() + begin;
    else
      cpu::widen_range(grad.data_ptr<c10::BFloat16>() + begin, room.data(), size);
    sgd_range(master.values(), wide, size, scale, static_cast<float>(lr),
              static_cast<float>(weight_decay));
    master.write();
  };
  at::parallel_for(0, param.numel(), cpu::kElementsPerTask, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i += MasterPiece::kSize) {
      update(i, std::min(MasterPiece::kSize, to - i));
    }
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("sgd", &sgd_cpu); }

}  // namespace fastsft
