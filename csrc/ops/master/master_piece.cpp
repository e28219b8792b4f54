#include "ops/master/master_piece.h"

#include "ops/cpu/elements.h"

namespace fastsft::cpu {
namespace {

FASTSFT_CLONES void upper_half(const float* master, c10::BFloat16* high, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &master[i], sizeof bits);
    const uint32_t rounded = (bits + 0x8000u) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    high[i].x = static_cast<uint16_t>(master[i] == master[i] ? rounded : quiet);
  }
}

FASTSFT_CLONES void round_range(const float* from, c10::Half* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(&to[i], from[i]);
}

FASTSFT_CLONES void lower_half(const float* master, int16_t* low, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &master[i], sizeof bits);
    low[i] = static_cast<int16_t>(bits & 0xFFFFu);
  }
}

FASTSFT_CLONES void join_halves(const c10::BFloat16* high, const int16_t* low, float* master,
                                int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = (static_cast<uint32_t>(high[i].x) << 16) +
                          static_cast<uint32_t>(static_cast<int32_t>(low[i]));
    std::memcpy(&master[i], &bits, sizeof bits);
  }
}

}  // namespace

MasterPiece::MasterPiece(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                         int64_t begin, int64_t size)
    : param_(param), copy_(compute_copy), begin_(begin), size_(size) {
  if (!split()) {
    values_ = param.data_ptr<float>() + begin;
    return;
  }
  values_ = room_.data();
  join_halves(copy_->data_ptr<bfloat16>() + begin, param.data_ptr<int16_t>() + begin, values_,
              size);
}

void MasterPiece::write() const {
  if (copy_ && copy_->scalar_type() == at::kHalf)
    round_range(values_, copy_->data_ptr<float16>() + begin_, size_);
  else if (copy_)
    upper_half(values_, copy_->data_ptr<bfloat16>() + begin_, size_);
  if (split()) lower_half(values_, param_.data_ptr<int16_t>() + begin_, size_);
}

}  // namespace fastsft::cpu
