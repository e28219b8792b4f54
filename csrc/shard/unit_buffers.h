#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "core/trace.h"
#include "shard/param_unit.h"

namespace fastsft {

// A few buffers, each as large as the largest unit, lent to units while they are whole.
class UnitBuffers {
 public:
  UnitBuffers(const std::vector<ParamUnit>& units, int world_size, size_t count,
              const at::TensorOptions& options, trace::Lane lane);
  // `sizes`: elements of the units; of those that are never lent 0.
  UnitBuffers(const std::vector<ParamUnit>& units, std::vector<int64_t> sizes, size_t count,
              const at::TensorOptions& options, trace::Lane lane);

  // The flat buffer of `unit`; the same one until `give_back`. Asking for more than there
  // are is a broken promise of the caller.
  at::Tensor take(size_t unit);
  bool holds(size_t unit) const;
  void give_back(size_t unit);
  int64_t nbytes() const;

 private:
  static constexpr size_t kFree = static_cast<size_t>(-1);
  const std::vector<ParamUnit>& units_;
  std::vector<int64_t> sizes_;
  std::vector<at::Tensor> buffers_;
  std::vector<size_t> owners_;
  trace::Lane lane_;
  std::vector<uint64_t> spans_;  // while a buffer is lent
};

}  // namespace fastsft
