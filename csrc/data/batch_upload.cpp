#include "data/batch_upload.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <string>

#include "core/trace.h"
#include "data/batch_layout.h"

namespace fastsft {

BatchUpload::BatchUpload(at::Device device) : device_(device), stream_(side_stream(device)) {}

// The blocks are given back in the order of the current stream, which an upload may not have
// reached.
BatchUpload::~BatchUpload() {
  for (const Block& block : blocks_) {
    for (const auto& event : block.copied) block_quietly(event);
  }
}

void BatchUpload::reserve(int64_t bytes, size_t batches) {
  for (Block& block : blocks_) make_room(block, bytes, batches);
}

void BatchUpload::make_room(Block& block, int64_t bytes, size_t batches) {
  for (const auto& event : block.copied) {  // the host block is written again
    if (!event.passed()) event.synchronize("upload");
  }
  while (block.copied.size() < batches) block.copied.emplace_back(device_);
  if (block.host.defined() && block.host.numel() >= bytes) return;
  const auto options = at::TensorOptions().dtype(at::kByte);
  const int64_t size = bytes + bytes / 4;
  block.host = at::empty({size}, options.pinned_memory(!device_.is_cpu()));
  block.device = device_.is_cpu() ? block.host : at::empty({size}, options.device(device_));
  // Because the allocator may hand out memory that earlier work of the current stream still reads.
  block.free.clear();
  block.free.emplace_back(device_).record();
}

void BatchUpload::copy(Block& block, const HostBatch& batch, size_t index, int64_t begin) {
  const c10::OptionalStreamGuard guard(stream_);
  const trace::Span span(trace::Lane::kUpload, "micro-batch", std::to_string(index));
  pack(batch, reinterpret_cast<std::byte*>(block.host.data_ptr<uint8_t>()) + begin);
  if (!stream_) return;
  const int64_t size = packed_bytes(batch);
  block.device.narrow(0, begin, size).copy_(block.host.narrow(0, begin, size), true);
  block.copied[index].record(stream_);
}

std::vector<Batch> BatchUpload::begin(std::span<const HostBatch> batches) {
  current_ = 1 - current_;
  Block& block = blocks_[current_];
  int64_t bytes = 0;
  for (const auto& batch : batches) bytes += packed_bytes(batch);
  make_room(block, bytes, batches.size());
  block.free.front().block(stream_);
  std::vector<Batch> result;
  int64_t offset = 0;
  for (const auto& batch : batches) {
    copy(block, batch, result.size(), offset);
    result.push_back(unpack(batch, block.device, offset));
    offset += packed_bytes(batch);
  }
  return result;
}

void BatchUpload::await(size_t index) { blocks_[current_].copied[index].block(); }

void BatchUpload::finish() { blocks_[current_].free.front().record(); }

int64_t BatchUpload::nbytes() const {
  int64_t sum = 0;
  for (const Block& block : blocks_) {
    if (block.device.defined()) sum += static_cast<int64_t>(block.device.nbytes());
  }
  return sum;
}

}  // namespace fastsft
