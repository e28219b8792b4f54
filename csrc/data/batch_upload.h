#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"
#include "data/device_event.h"
#include "data/host_batch.h"

namespace fastsft {

// The most bytes that `batches` batches with that many tokens and labels in all take when they are
// packed, each array from a multiple of 64 on.
int64_t most_packed_bytes(int64_t tokens, int64_t labels, int64_t batches);

// Brings the micro-batches of a step to the device. They are packed into one page-locked block and
// copied one by one on a stream of their own, so that a micro-batch travels while the one before it
// is computed. Two blocks take turns: a step may be begun while the one before it is still running.
// On the CPU the batches are views into the block.
class BatchUpload {
 public:
  explicit BatchUpload(at::Device device);
  ~BatchUpload();
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;

  // Makes both blocks for steps of up to `bytes` (most_packed_bytes) in up to `batches` batches.
  void reserve(int64_t bytes, size_t batches);
  // Begins to copy all `batches`; the host does not wait, unless the step before last has not even
  // begun on the device. The result is valid until the second `begin` after this one.
  std::vector<Batch> begin(std::span<const HostBatch> batches);
  // What is enqueued from now on may read batch `index` of the last `begin`.
  void await(size_t index);
  // The last computation that reads the batches has been enqueued.
  void finish();

  int64_t nbytes() const;  // on the device

 private:
  struct Block {
    at::Tensor host, device;
    std::vector<DeviceEvent> copied;  // one a micro-batch
    std::vector<DeviceEvent> free;    // none or one: nothing reads `device` after it
  };

  void make_room(Block& block, int64_t bytes, size_t batches);
  void copy(Block& block, const HostBatch& batch, size_t index, int64_t begin);

  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::array<Block, 2> blocks_;
  size_t current_ = 1;
};

}  // namespace fastsft
