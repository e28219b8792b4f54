#include "ops/adamw/master_piece.h"

#include "ops/adamw/narrow_state.h"
#include "ops/cpu/convert.h"

namespace fastsft::cpu {

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
