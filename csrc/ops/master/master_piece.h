#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace fastsft::cpu {

// A few elements of a master weight (ops/master/master.h) in float32, for an optimizer's loop.
// float32 masters are used in place; split masters are joined into a buffer.
class MasterPiece {
 public:
  static constexpr int64_t kSize = 1024;

  // Covers elements [begin, begin + size), at most kSize. The tensors must outlive the object.
  MasterPiece(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy, int64_t begin,
              int64_t size);
  MasterPiece(const MasterPiece&) = delete;
  MasterPiece& operator=(const MasterPiece&) = delete;

  float* values() { return values_; }
  // Writes the values to the master, and rounded to the compute copy.
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
