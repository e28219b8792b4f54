#pragma once

#include "ops/cuda/pack.cuh"
#include "ops/master/master.h"

namespace fastsft::cuda {

// These functions split and join a float32 master's halves (rule: ops/master/master.h).
__device__ inline bfloat16 upper_half(float master) {
  const unsigned bits = __float_as_uint(master);
  const unsigned rounded = (bits + 0x8000u) >> 16, quiet = (bits >> 16) | 0x40u;
  return __ushort_as_bfloat16(static_cast<unsigned short>(master == master ? rounded : quiet));
}

__device__ inline int16_t lower_half(float master) {
  return static_cast<int16_t>(__float_as_uint(master) & 0xFFFFu);
}

__device__ inline float joined(bfloat16 high, int16_t low) {
  const unsigned upper = static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
  return __uint_as_float(upper + static_cast<unsigned>(static_cast<int>(low)));
}

// Loads kWidth neighbouring elements of a master, stored as float or as int16_t halves.
template <int kWidth>
__device__ inline void load_master(const float* from, const bfloat16*, float* values) {
  load_wide<kWidth>(from, values);
}
template <int kWidth>
__device__ inline void load_master(const int16_t* low, const bfloat16* high, float* values) {
  const auto lower = *reinterpret_cast<const Pack<int16_t, kWidth>*>(low);
  const auto upper = *reinterpret_cast<const Pack<bfloat16, kWidth>*>(high);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = joined(upper.at[i], lower.at[i]);
}

template <int kWidth>
__device__ inline void store_master(float* to, const float* values) {
  store_floats<kWidth>(to, values);
}
template <int kWidth>
__device__ inline void store_master(int16_t* to, const float* values) {
  Pack<int16_t, kWidth> low;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) low.at[i] = lower_half(values[i]);
  *reinterpret_cast<Pack<int16_t, kWidth>*>(to) = low;
}

template <int kWidth>
__device__ inline void store_copy(bfloat16* to, const float* values) {
  Pack<bfloat16, kWidth> high;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) high.at[i] = upper_half(values[i]);
  *reinterpret_cast<Pack<bfloat16, kWidth>*>(to) = high;
}

// A master weight's position, from which a kernel reads and writes.
template <typename Value>
class MasterPlace {
 public:
  __device__ MasterPlace(const MasterArgs& args, int64_t at)
      : values_(static_cast<Value*>(args.values) + at),
        copy_(args.copy ? static_cast<bfloat16*>(args.copy) + at : nullptr),
        args_(args) {}

  // Returns the position `count` elements further.
  __device__ MasterPlace after(int64_t count) const {
    return {values_ + count, copy_ ? copy_ + count : nullptr, args_};
  }

  template <int kWidth>
  __device__ void load(float* values) const {
    load_master<kWidth>(values_, copy_, values);
  }
  // Writes the master and its compute copy.
  template <int kWidth>
  __device__ void store(const float* values) const {
    store_master<kWidth>(values_, values);
    if (copy_ == nullptr) return;
    if constexpr (sizeof(Value) == sizeof(float)) {
      if (args_.half_copy) return store_pack<kWidth>(reinterpret_cast<float16*>(copy_), values);
    }
    store_copy<kWidth>(copy_, values);
  }

 private:
  __device__ MasterPlace(Value* values, bfloat16* copy, const MasterArgs& args)
      : values_(values), copy_(copy), args_(args) {}

  Value* values_;
  bfloat16* copy_;
  const MasterArgs& args_;
};

// Calls launch(value) with a value of MasterPlace's type argument: int16_t for a split master, else
// float.
template <typename Launch>
void with_master_value(const MasterArgs& args, const Launch& launch) {
  if (args.split)
    launch(int16_t{});
  else
    launch(float{});
}

}  // namespace fastsft::cuda
