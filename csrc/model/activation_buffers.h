#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "model/buffer_table.h"

namespace fastsft {

// The memory of a BufferTable. It grows to the largest micro-batch seen and is used again: after
// warm-up a step allocates nothing large. All on one device. A buffer's content is what the last
// user of its memory left.
class ActivationBuffers {
 public:
  ActivationBuffers(const ModelConfig& config, at::ScalarType dtype, Recompute recompute,
                    at::Device device, const AdapterSizes& adapters = {});

  // Makes all memory of training for micro-batches of up to `shape`.
  void reserve(const MicroBatchShape& shape);
  // The sizes of the following `get`s.
  void begin(const MicroBatchShape& shape, Pass pass);
  // With the sizes of its row. `layer` counts where the table has several copies of the buffer.
  at::Tensor get(Buffer buffer, int64_t layer = 0);
  int64_t nbytes() const;

 private:
  BufferTable table_of(const MicroBatchShape& shape, Pass pass) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  Recompute recompute_;
  at::Device device_;
  AdapterSizes adapters_;
  BufferTable table_;
  std::array<std::vector<at::Tensor>, kNumBuffers> memory_;  // of owners
};

}  // namespace fastsft
