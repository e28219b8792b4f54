#include "data/batch_upload.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <cstring>
#include <string>

#include "core/trace.h"

namespace fastsft {
namespace {

constexpr int64_t kAlign = 64;

template <typename T>
int64_t array_bytes(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T) + kAlign - 1) / kAlign * kAlign;
}

// Calls `visit(array, tensor)` for every array in the batch, in packing order.
template <typename Visit>
void for_each_array(const HostBatch& host, Batch& batch, const Visit& visit) {
  visit(host.input_ids, batch.input_ids);
  visit(host.positions, batch.positions);
  visit(host.cu_seqlens, batch.cu_seqlens);
  visit(host.is_key, batch.is_key);
  visit(host.token_keys, batch.token_keys);
  visit(host.label_positions, batch.label_positions);
  visit(host.targets, batch.targets);
  visit(host.token_weights, batch.token_weights);
  visit(host.cudnn.lists, batch.cudnn_lists);
}

// Returns the bytes that a batch's arrays take, laid end to end and each aligned to kAlign.
int64_t packed_bytes(const HostBatch& batch) {
  int64_t bytes = 0;
  Batch unused;
  for_each_array(batch, unused,
                 [&](const auto& values, at::Tensor&) { bytes += array_bytes(values); });
  return bytes;
}

// Writes the batch's arrays to `to`, which is aligned to kAlign.
void pack(const HostBatch& batch, std::byte* to) {
  Batch unused;
  for_each_array(batch, unused, [&](const auto& values, at::Tensor&) {
    if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(values[0]));
    to += array_bytes(values);
  });
}

// Returns the batch's arrays as views into `block` (uint8), from byte `offset` on, which is aligned
// to kAlign.
Batch unpack(const HostBatch& host, const at::Tensor& block, int64_t offset) {
  Batch batch;
  batch.max_seqlen = host.max_seqlen;
  batch.num_positions = host.num_positions;
  batch.is_slice = host.is_slice;
  batch.boundaries = host.cu_seqlens;
  batch.cudnn_shapes = host.cudnn.shapes;
  for_each_array(host, batch, [&](const auto& values, at::Tensor& tensor) {
    using Element = typename std::decay_t<decltype(values)>::value_type;
    const auto size = static_cast<int64_t>(values.size() * sizeof(Element));
    tensor = block.narrow(0, offset, size).view(c10::CppTypeToScalarType<Element>::value);
    offset += array_bytes(values);
  });
  return batch;
}

}  // namespace

int64_t most_packed_bytes(int64_t tokens, int64_t labels, int64_t batches) {
  constexpr int64_t kArrays = 9;
  // Per token: id (8), position (4) and at worst an entry of cu_seqlens (4). Per label: position
  // (8), target (8) and weight (4). `is_key` (1 byte a token) and `token_keys` (4) are rare, and
  // `cudnn_lists` (at most 64 a conversation) are short; they fit in the extra quarter that
  // BatchUpload allocates.
  return (8 + 4 + 4) * tokens + (8 + 8 + 4) * labels + batches * (kArrays * (kAlign - 1) + 4);
}

BatchUpload::BatchUpload(at::Device device) : device_(device), stream_(side_stream(device)) {}

// A step that ended early leaves uploads under way.
BatchUpload::~BatchUpload() { join_quietly(stream_); }

void BatchUpload::reserve(int64_t bytes, size_t batches) {
  for (Block& block : blocks_) make_room(block, bytes, batches);
}

void BatchUpload::make_room(Block& block, int64_t bytes, size_t batches) {
  for (const auto& event : block.copied) {  // the host buffer is about to be overwritten
    if (!event.passed()) event.synchronize("upload");
  }
  while (block.copied.size() < batches) block.copied.emplace_back(device_);
  if (block.host.defined() && block.host.numel() >= bytes) return;
  const auto options = at::TensorOptions().dtype(at::kByte);
  const int64_t size = bytes + bytes / 4;
  block.host = at::empty({size}, options.pinned_memory(!device_.is_cpu()));
  block.device = device_.is_cpu() ? block.host : at::empty({size}, options.device(device_));
  // The allocator may return memory that earlier work on the current stream still reads.
  block.free.clear();
  block.free.emplace_back(device_).record();
}

void BatchUpload::copy(Block& block, const HostBatch& batch, size_t index, int64_t begin) {
  const c10::OptionalStreamGuard guard(stream_);
  const trace::Span span(trace::Track::kUpload, "micro-batch", std::to_string(index));
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
