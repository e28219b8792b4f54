#include "ops/adamw8bit/adamw8bit.h"

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

constexpr size_t kBlockSize = kQuantBlock;
using BlockValues = std::array<float, kBlockSize>;

struct Constants8bit {
  float scale, beta1, beta1_rest, beta2, beta2_rest;
  float bias2_sqrt = 0, step_size = 0, eps = 0, decay = 0;
};

// The first or second moment for a piece of a block.
struct Moment {
  const float* levels;
  const float* bounds;
  uint8_t* codes;
  float* absmax;
};

FASTSFT_CLONES void read_codes(const uint8_t* codes, const float* levels, float absmax,
                               int64_t count, float* values) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) values[i] = levels[codes[i]] * absmax;
}

FASTSFT_CLONES void average_8bit(float* m, float* v, const float* grad, int64_t count,
                                 const Constants8bit& constants) {
  const Constants8bit c = constants;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.scale;
    m[i] = m[i] * c.beta1 + c.beta1_rest * g;
    v[i] = v[i] * c.beta2 + c.beta2_rest * g * g;
  }
}

FASTSFT_CLONES void update_8bit(float* param, const float* m, const float* v, int64_t count,
                                const Constants8bit& constants) {
  const Constants8bit c = constants;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float denominator = std::sqrt(v[i]) / c.bias2_sqrt + c.eps;
    param[i] = param[i] * c.decay - c.step_size * (m[i] / denominator);
  }
}

FASTSFT_CLONES float largest_of(const float* values, int64_t count) {
  float most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[i]));
  return most;
}

FASTSFT_CLONES void write_codes(const float* values, const float* bounds, float absmax,
                                int64_t count, uint8_t* codes) {
  const float inverse = 1.0f / std::max(absmax, kLeastScale);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float x = std::min(std::max(values[i] * inverse, -1.0f), 1.0f);
    int place = 0;  // how many bounds are below x
    for (int step = 128; step > 0; step /= 2) place += bounds[place + step - 1] < x ? step : 0;
    codes[i] = static_cast<uint8_t>(place);
  }
}

class BlockGradients {
 public:
  BlockGradients(const at::Tensor& grad, int64_t begin, int64_t size) : values_(room_.data()) {
    if (grad.scalar_type() == at::kFloat)
      values_ = grad.data_ptr<float>() + begin;
    else
      cpu::widen_range(grad.data_ptr<c10::BFloat16>() + begin, room_.data(), size);
  }
  const float* values() const { return values_; }

 private:
  BlockValues room_;
  const float* values_;
};

// The new moments for a piece of a block, in float32.
struct NewMoments {
  BlockValues m, v;

  NewMoments(const Moment& first, const Moment& second, const float* grad, int64_t size,
             const Constants8bit& constants) {
    read_codes(first.codes, first.levels, *first.absmax, size, m.data());
    read_codes(second.codes, second.levels, *second.absmax, size, v.data());
    average_8bit(m.data(), v.data(), grad, size, constants);
  }
};

// Returns the moment of the elements from `at` on, which are in block number `block` of the range.
// `row` is the moment's first row of `levels`.
Moment moment_of(const at::Tensor& codes, const at::Tensor& absmax, const at::Tensor& levels,
                 int64_t row, int64_t at, int64_t block) {
  const float* table = levels.data_ptr<float>() + row * kQuantLevels;
  return {table, table + kQuantLevels, codes.data_ptr<uint8_t>() + at,
          absmax.data_ptr<float>() + block};
}

Constants8bit constants_of(const double* scalars, double beta1, double beta2) {
  return {.scale = static_cast<float>(scalars[kStepGradScale]),
          .beta1 = static_cast<float>(beta1),
          .beta1_rest = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .beta2_rest = static_cast<float>(1.0 - beta2)};
}

float edge_of(const std::optional<at::Tensor>& edge, bool here, int64_t which) {
  return edge && here ? edge->data_ptr<float>()[which] : 0.0f;
}

void adamw8bit_cpu(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                   const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
                   const at::Tensor& absmax1, const at::Tensor& absmax2, const at::Tensor& levels,
                   const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
                   double weight_decay, int64_t first, const std::optional<at::Tensor>& first_edge,
                   const std::optional<at::Tensor>& last_edge) {
  check_adamw8bit(param, compute_copy, grad, state1, state2, absmax1, absmax2, levels, scalars, lr,
                  beta1, beta2, eps, weight_decay, first, first_edge, last_edge);
  const double* values = scalars.data_ptr<double>();
  Constants8bit constants = constants_of(values, beta1, beta2);
  if (!std::isfinite(constants.scale)) return;
  const double step = values[kStepNumber];
  constants.bias2_sqrt = static_cast<float>(std::sqrt(1.0 - std::pow(beta2, step)));
  constants.step_size = static_cast<float>(lr / (1.0 - std::pow(beta1, step)));
  constants.eps = static_cast<float>(eps);
  constants.decay = static_cast<float>(1.0 - lr * weight_decay);
  const int64_t blocks = absmax1.numel(), skipped = first / kQuantBlock * kQuantBlock;
  const auto update_block = [&](int64_t block) {
    const int64_t begin = std::max(first, skipped + block * kQuantBlock) - first;
    const int64_t end = std::min(first + grad.numel(), skipped + (block + 1) * kQuantBlock) - first;
    const Moment moments[] = {moment_of(state1, absmax1, levels, 0, begin, block),
                              moment_of(state2, absmax2, levels, 2, begin, block)};
    const int64_t size = end - begin;
    const NewMoments now(moments[0], moments[1], BlockGradients(grad, begin, size).values(), size,
                         constants);
    cpu::MasterPiece master(param, compute_copy, begin, size);
    update_8bit(master.values(), now.m.data(), now.v.data(), size, constants);
    master.write();
    for (const int64_t which : {0, 1}) {
      const Moment& moment = moments[which];
      const float* data = which == 0 ? now.m.data() : now.v.data();
      *moment.absmax = std::max({largest_of(data, size), edge_of(first_edge, block == 0, which),
                                 edge_of(last_edge, block == blocks - 1, which)});
      write_codes(data, moment.bounds, *moment.absmax, size, moment.codes);
    }
  };
  at::parallel_for(0, blocks, cpu::rows_per_task(kQuantBlock), [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block) update_block(block);
  });
}

void adamw8bit_maxima_cpu(const at::Tensor& grad, const at::Tensor& state1,
                          const at::Tensor& state2, const at::Tensor& absmax1,
                          const at::Tensor& absmax2, const at::Tensor& levels,
                          const at::Tensor& scalars, double beta1, double beta2,
                          const at::Tensor& maxima) {
  check_adamw8bit_maxima(grad, state1, state2, absmax1, absmax2, levels, scalars, beta1, beta2,
                         maxima);
  const int64_t size = grad.numel();
  const NewMoments now(moment_of(state1, absmax1, levels, 0, 0, 0),
                       moment_of(state2, absmax2, levels, 2, 0, 0),
                       BlockGradients(grad, 0, size).values(), size,
                       constants_of(scalars.data_ptr<double>(), beta1, beta2));
  float* most = maxima.data_ptr<float>();
  most[0] = std::max(most[0], largest_of(now.m.data(), size));
  most[1] = std::max(most[1], largest_of(now.v.data(), size));
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("adamw8bit", &adamw8bit_cpu);
  m.impl("adamw8bit_maxima", &adamw8bit_maxima_cpu);
}

}  // namespace fastsft
