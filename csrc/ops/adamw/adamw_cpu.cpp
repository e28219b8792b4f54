#include "ops/adamw/adamw.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ops/adamw/philox.h"
#include "ops/cpu/elements.h"
#include "ops/cpu/flat_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/gradient/step_scalars.h"
#include "ops/master/master_piece.h"

namespace fastsft::cpu {
namespace {

// Computes one random word for each of the elements [first, first + count) of a step (rule:
// ops/adamw/adamw.h). `words` needs room for count + 6. Returns a pointer to the first element's
// word.
FASTSFT_CLONES const uint32_t* element_words(int64_t seed, int64_t step, int64_t first,
                                             int64_t count, uint32_t* words) {
  const int64_t begin = first / 4, end = (first + count + 3) / 4;
#pragma omp simd
  for (int64_t block = begin; block < end; ++block) {
    uint32_t values[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                          static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
    philox(values, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    for (int word = 0; word < 4; ++word) words[4 * (block - begin) + word] = values[word];
  }
  return words + first % 4;
}

// Rounds each value to one of its two bfloat16 neighbours, with probabilities that keep the
// expected value exact. NaN stays NaN. An element uses the 16 random bits of its word from bit
// `shift` on.
FASTSFT_CLONES void round_stochastically(const float* from, const uint32_t* words, int shift,
                                         bfloat16* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &from[i], sizeof bits);
    const uint32_t rounded = (bits + ((words[i] >> shift) & 0xFFFFu)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    to[i].x = static_cast<uint16_t>(from[i] == from[i] ? rounded : quiet);
  }
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

// Returns a step's factors. Bias corrections and step size are computed in float64, as in
// torch.
cpu::AdamwConstants constants(double lr, double beta1, double beta2, double eps,
                              double weight_decay, double step, float grad_scale) {
  const double bias1 = 1.0 - std::pow(beta1, step);
  const double bias2 = 1.0 - std::pow(beta2, step);
  return {.decay = static_cast<float>(1.0 - lr * weight_decay),
          .beta1_rest = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .beta2_rest = static_cast<float>(1.0 - beta2),
          .bias2_sqrt = static_cast<float>(std::sqrt(bias2)),
          .step_size = static_cast<float>(lr / bias1),
          .eps = static_cast<float>(eps),
          .grad_scale = grad_scale};
}

using cpu::bfloat16;
using cpu::MasterPiece;

struct Tensors {
  const at::Tensor& param;
  const std::optional<at::Tensor>& compute_copy;
  const at::Tensor& grad;
  const at::Tensor& exp_avg;
  const at::Tensor& exp_avg_sq;
};

// The inputs of an element's random bits; `first` is the index of the range's first element.
struct Rounding {
  int64_t seed, step, first;
};

// A piece of the range, updated in float32, so that one formula serves all dtypes. float32 tensors
// are updated in place, without a copy.
class Piece {
 public:
  static constexpr int64_t kSize = MasterPiece::kSize;
  Piece(const Tensors& tensors, int64_t begin, int64_t size)
      : tensors_(tensors), begin_(begin), size_(size) {}

  void update(const cpu::AdamwConstants& constants, const Rounding& rounding) {
    MasterPiece master(tensors_.param, tensors_.compute_copy, begin_, size_);
    float* param = master.values();
    float* exp_avg = wide(tensors_.exp_avg, exp_avg_);
    float* exp_avg_sq = wide(tensors_.exp_avg_sq, exp_avg_sq_);
    cpu::adamw_range(param, wide(tensors_.grad, grad_), exp_avg, exp_avg_sq, size_, constants);
    master.write();
    if (tensors_.exp_avg.scalar_type() == at::kFloat) return;
    std::array<uint32_t, kSize + 6> room;
    const uint32_t* words = cpu::element_words(rounding.seed, rounding.step,
                                               rounding.first + begin_, size_, room.data());
    cpu::round_stochastically(exp_avg, words, 0, part<bfloat16>(tensors_.exp_avg), size_);
    cpu::round_stochastically(exp_avg_sq, words, 16, part<bfloat16>(tensors_.exp_avg_sq), size_);
  }

 private:
  template <typename T>
  T* part(const at::Tensor& tensor) const {
    return tensor.data_ptr<T>() + begin_;
  }
  float* wide(const at::Tensor& tensor, std::array<float, kSize>& room) const {
    if (tensor.scalar_type() == at::kFloat) return part<float>(tensor);
    cpu::widen_range(part<bfloat16>(tensor), room.data(), size_);
    return room.data();
  }

  const Tensors& tensors_;
  int64_t begin_, size_;
  std::array<float, kSize> grad_, exp_avg_, exp_avg_sq_;
};

void update(const Tensors& tensors, const cpu::AdamwConstants& constants,
            const Rounding& rounding) {
  at::parallel_for(0, tensors.param.numel(), cpu::kElementsPerTask, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i += Piece::kSize) {
      Piece(tensors, i, std::min(Piece::kSize, to - i)).update(constants, rounding);
    }
  });
}

void adamw_cpu(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
               const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
               double weight_decay, int64_t seed, int64_t first_element) {
  check_adamw(param, compute_copy, grad, exp_avg, exp_avg_sq, scalars, lr, beta1, beta2, eps,
              weight_decay, seed, first_element);
  const double* values = scalars.data_ptr<double>();
  const auto scale = static_cast<float>(values[kStepGradScale]);
  if (!std::isfinite(scale)) return;
  const auto c = constants(lr, beta1, beta2, eps, weight_decay, values[kStepNumber], scale);
  update({param, compute_copy, grad, exp_avg, exp_avg_sq}, c,
         {seed, static_cast<int64_t>(values[kStepNumber]), first_element});
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("adamw", &adamw_cpu); }

}  // namespace fastsft
