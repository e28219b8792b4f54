#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace fastsft::cpu {

// A few elements of a master weight (ops/master/master.h) in float32, for an optimizer's loop: in
// their place where they are float32, else joined from their halves.
class MasterPiece {
 public:
  static constexpr int64_t kSize = 1024;

  // Elements [begin, begin + size), size at most kSize. The tensors outlive it.
  MasterPiece(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy, int64_t begin,
              int64_t size);
  MasterPiece(const MasterPiece&) = delete;
  MasterPiece& operator=(const MasterPiece&) = delete;

  float* values() { return values_; }
  // The values become the master, and rounded the compute copy.
  void write() const;

 private:
  bool split() const { return param_.scalar_type() == at::kShort; }

  const at::Tensor& param_;
  const std::optional<at::Tensor>& copy_;
  int64_t begin_, size_;
  float* values_;
  std::array<float, kSize> room_;
};

}  // namespace fastsft::cpu
