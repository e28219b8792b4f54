#include <torch/library.h>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"
#include "ops/nf4/nf4.h"

namespace fastsft::cpu {
namespace {

struct Nf4Source {
  const uint8_t* packed;
  const float* scales;
  const float* levels;
};

// The scales of blocks. bitsandbytes rounds the product before it adds the mean; a table of
// products keeps the compiler from fusing the two steps.
class Scales {
 public:
  explicit Scales(const Nf4Source& from) : from_(from) {}

  FASTSFT_INLINE float of(int64_t block, uint8_t level) {
    if (const int64_t group = block / kNf4ScaleGroup; group != group_) fill(group);
    return products_[level] + from_.scales[0];
  }

 private:
  FASTSFT_INLINE void fill(int64_t group) {
    group_ = group;
    for (int64_t i = 0; i < kNf4ScaleLevels; ++i) {
      products_[i] = from_.levels[kNf4Levels + i] * from_.scales[1 + group];
    }
  }

  const Nf4Source& from_;
  int64_t group_ = -1;
  float products_[kNf4ScaleLevels];
};

template <typename T>
FASTSFT_INLINE void unpack(const Nf4Source& from, int64_t begin, int64_t end, T* out) {
  Scales scales(from);
  for (int64_t block = begin; block < end; ++block) {
    const uint8_t* bytes = from.packed + block * kNf4BlockBytes;
    const float scale = scales.of(block, bytes[kNf4Block / 2]);
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

FASTSFT_CLONES void unpack_blocks(const Nf4Source& from, int64_t begin, int64_t end, float16* out) {
  unpack(from, begin, end, out);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void nf4_dequantize_cpu(const at::Tensor& packed, const at::Tensor& scales,
                        const at::Tensor& levels, const at::Tensor& out) {
  check_nf4_dequantize(packed, scales, levels, out);
  const cpu::Nf4Source from{packed.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
                            levels.const_data_ptr<float>()};
  cpu::dispatch(out.scalar_type(), [&]<typename T>() {
    at::parallel_for(0, packed.size(0), cpu::rows_per_task(kNf4Block),
                     [&](int64_t begin, int64_t end) {
                       cpu::unpack_blocks(from, begin, end, out.data_ptr<T>());
                     });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("nf4_dequantize", &nf4_dequantize_cpu); }

}  // namespace fastsft
