#include <torch/library.h>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/nf4/nf4.h"

namespace fastsft::cpu {
namespace {

struct Nf4Source {
  const uint8_t* packed;
  const float* scales;
  const float* levels;
};

// The product is rounded before the sum, as bitsandbytes does it in two steps.
FASTSFT_INLINE float scale_of(const Nf4Source& from, int64_t block, uint8_t code) {
  const double level = from.levels[kNf4Levels + code];
  const double group = from.scales[1 + block / kNf4ScaleGroup];
  return static_cast<float>(level * group) + from.scales[0];
}

template <typename T>
FASTSFT_INLINE void unpack(const Nf4Source& from, int64_t begin, int64_t end, T* out) {
  for (int64_t block = begin; block < end; ++block) {
    const uint8_t* bytes = from.packed + block * kNf4BlockBytes;
    const float scale = scale_of(from, block, bytes[kNf4Block / 2]);
    T values[kNf4Levels];
    for (int64_t i = 0; i < kNf4Levels; ++i) store(&values[i], from.levels[i] * scale);
    T* to = out + block * kNf4Block;
    for (int64_t i = 0; i < kNf4Block / 2; ++i) {
      to[2 * i] = values[bytes[i] >> 4];
      to[2 * i + 1] = values[bytes[i] & 15];
    }
  }
}

FASTSFT_CLONES void unpack_blocks(const Nf4Source& from, int64_t begin, int64_t end, float* out) {
  unpack(from, begin, end, out);
}

FASTSFT_CLONES void unpack_blocks(const Nf4Source& from, int64_t begin, int64_t end,
                                  bfloat16* out) {
  unpack(from, begin, end, out);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

template <typename T>
void run(const cpu::Nf4Source& from, const at::Tensor& out) {
  at::parallel_for(
      0, out.numel() / kNf4Block, cpu::rows_per_task(kNf4Block),
      [&](int64_t begin, int64_t end) { cpu::unpack_blocks(from, begin, end, out.data_ptr<T>()); });
}

void nf4_dequantize_cpu(const at::Tensor& packed, const at::Tensor& scales,
                        const at::Tensor& levels, const at::Tensor& out) {
  check_nf4_dequantize(packed, scales, levels, out);
  const cpu::Nf4Source from{packed.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
                            levels.const_data_ptr<float>()};
  (out.scalar_type() == at::kFloat ? run<float> : run<c10::BFloat16>)(from, out);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("nf4_dequantize", &nf4_dequantize_cpu); }

}  // namespace fastsft
