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

// Returns an upper bound on the bytes that `batches` packed batches take, given their total token
// and label counts. Each array is aligned to 64 bytes.
int64_t most_packed_bytes(int64_t tokens, int64_t labels, int64_t batches);

// Copies a step's micro-batches to the device. They are packed into one page-locked buffer and
// copied one by one on a separate stream, so that a micro-batch is copied while the previous one is
// computed. Two buffers alternate, so that a step may begin while the previous step is still
// running. On the CPU the batches are views of the buffer.
class BatchUpload {
 public:
  explicit BatchUpload(at::Device device);
  ~BatchUpload();
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;

  // Allocates both buffers for steps with at most `bytes` (most_packed_bytes) and `batches`
  // batches.
  void reserve(int64_t bytes, size_t batches);
  // Enqueues the copies for all `batches`. The host waits only if copies from the step before the
  // last are still pending. The result is valid until the second `begin` after this call.
  std::vector<Batch> begin(std::span<const HostBatch> batches);
  // Makes the current stream wait until batch `index` has been copied. The index refers to the last
  // `begin`.
  void await(size_t index);
  // Allows the buffer to be overwritten. Call it after the last computation that reads the batches
  // was enqueued.
  void finish();

  int64_t nbytes() const;  // bytes that both buffers take on the device

 private:
  struct Block {
    at::Tensor host, device;
    std::vector<DeviceEvent> copied;  // one event per micro-batch
    std::vector<DeviceEvent> free;    // at most one event: after it nothing reads `device`
  };

  void make_room(Block& block, int64_t bytes, size_t batches);
  void copy(Block& block, const HostBatch& batch, size_t index, int64_t begin);

  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::array<Block, 2> blocks_;
  size_t current_ = 1;
};

}  // namespace fastsft
