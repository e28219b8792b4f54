#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "core/trace.h"
#include "shard/param_unit.h"

namespace fastsft {

// A few buffers for gathered units, each as large as the largest unit.
class UnitBuffers {
 public:
  UnitBuffers(const std::vector<ParamUnit>& units, int world_size, size_t count,
              const at::TensorOptions& options, trace::Track track);
  // `sizes`: elements of each unit; 0 if the unit never needs a buffer.
  UnitBuffers(const std::vector<ParamUnit>& units, std::vector<int64_t> sizes, size_t count,
              const at::TensorOptions& options, trace::Track track);

  // Returns the buffer of `unit`, the same until `release`. An internal error if no buffer is free.
  at::Tensor acquire(size_t unit);
  bool is_acquired(size_t unit) const;
  void release(size_t unit);
  int64_t nbytes() const;

 private:
  static constexpr size_t kFree = static_cast<size_t>(-1);
  const std::vector<ParamUnit>& units_;
  std::vector<int64_t> sizes_;
  std::vector<at::Tensor> buffers_;
  std::vector<size_t> owners_;
  trace::Track track_;
  std::vector<uint64_t> spans_;  // trace spans of acquired buffers
};

}  // namespace fastsft
