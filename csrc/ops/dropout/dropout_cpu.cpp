#include <torch/library.h>

#include <algorithm>

#include "ops/adamw/philox.h"
#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"
#include "ops/dropout/dropout.h"

namespace fastsft::cpu {
namespace {

struct Mask {
  uint32_t seed_low, seed_high, stream, first_kept;
  float scale;  // factor for kept elements
};

constexpr int64_t kBlocks = 64;  // blocks of four columns, whose words are computed together

FASTSFT_INLINE void make_words(const Mask& mask, uint32_t key, int64_t first_block, int64_t blocks,
                               uint32_t* words) {
#pragma omp simd
  for (int64_t block = 0; block < blocks; ++block) {
    uint32_t values[4] = {static_cast<uint32_t>(first_block + block), key, mask.stream, 0};
    philox(values, mask.seed_low, mask.seed_high);
    for (int64_t i = 0; i < 4; ++i) words[4 * block + i] = values[i];
  }
}

template <typename T>
FASTSFT_INLINE void run_rows(const T* x, const int32_t* keys, const Mask& mask, T* out, float beta,
                             int64_t rows, int64_t width) {
  uint32_t words[4 * kBlocks];
  for (int64_t i = 0; i < rows; ++i, x += width, out += width) {
    for (int64_t begin = 0; begin < width; begin += 4 * kBlocks) {
      const int64_t count = std::min(4 * kBlocks, width - begin);
      make_words(mask, static_cast<uint32_t>(keys[i]), begin / 4, (count + 3) / 4, words);
      for (int64_t j = 0; j < count; ++j) {
        const float kept = words[j] >= mask.first_kept ? to_float(x[begin + j]) * mask.scale : 0.0f;
        const float held = beta == 0 ? 0.0f : beta * to_float(out[begin + j]);
        store(&out[begin + j], held + kept);
      }
    }
  }
}

FASTSFT_CLONES void dropout_rows(const float* x, const int32_t* keys, const Mask& mask, float* out,
                                 float beta, int64_t rows, int64_t width) {
  run_rows(x, keys, mask, out, beta, rows, width);
}

FASTSFT_CLONES void dropout_rows(const bfloat16* x, const int32_t* keys, const Mask& mask,
                                 bfloat16* out, float beta, int64_t rows, int64_t width) {
  run_rows(x, keys, mask, out, beta, rows, width);
}

FASTSFT_CLONES void dropout_rows(const float16* x, const int32_t* keys, const Mask& mask,
                                 float16* out, float beta, int64_t rows, int64_t width) {
  run_rows(x, keys, mask, out, beta, rows, width);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void dropout_cpu(const at::Tensor& x, const at::Tensor& keys, double p, int64_t seed,
                 int64_t stream, const at::Tensor& out, double beta) {
  check_dropout(x, keys, p, seed, stream, out, beta);
  const cpu::Mask mask{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                       static_cast<uint32_t>(stream), first_kept_word(p),
                       static_cast<float>(1.0 / (1.0 - p))};
  const int64_t width = x.size(1);
  cpu::dispatch(x.scalar_type(), [&]<typename T>() {
    at::parallel_for(0, x.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * width;
      cpu::dropout_rows(x.data_ptr<T>() + at, keys.data_ptr<int32_t>() + begin, mask,
                        out.data_ptr<T>() + at, static_cast<float>(beta), end - begin, width);
    });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("dropout", &dropout_cpu); }

}  // namespace fastsft
