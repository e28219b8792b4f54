#include "data/batch_layout.h"

#include <cstring>
#include <vector>

namespace fastsft {
namespace {

constexpr int64_t kAlign = 64;

template <typename T>
int64_t array_bytes(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T) + kAlign - 1) / kAlign * kAlign;
}

// Calls `visit(array, tensor)` for every array of the batch, in the order in which they are packed.
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
}

}  // namespace

int64_t packed_bytes(const HostBatch& batch) {
  int64_t bytes = 0;
  Batch unused;
  for_each_array(batch, unused,
                 [&](const auto& values, at::Tensor&) { bytes += array_bytes(values); });
  return bytes;
}

int64_t most_packed_bytes(int64_t tokens, int64_t labels, int64_t batches) {
  constexpr int64_t kArrays = 7;
  // Ids, positions and, at worst, a boundary; positions, targets and weights of labels. The byte a
  // token of `is_key` and the four of `token_keys`, which few batches have, find room in what
  // BatchUpload takes more.
  return (8 + 4 + 4) * tokens + (8 + 8 + 4) * labels + batches * (kArrays * (kAlign - 1) + 4);
}

void pack(const HostBatch& batch, std::byte* to) {
  Batch unused;
  for_each_array(batch, unused, [&](const auto& values, at::Tensor&) {
    if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(values[0]));
    to += array_bytes(values);
  });
}

Batch unpack(const HostBatch& host, const at::Tensor& block, int64_t offset) {
  Batch batch;
  batch.max_seqlen = host.max_seqlen;
  batch.num_positions = host.num_positions;
  if (!host.is_key.empty()) batch.boundaries = host.cu_seqlens;
  for_each_array(host, batch, [&](const auto& values, at::Tensor& tensor) {
    using Element = typename std::decay_t<decltype(values)>::value_type;
    const auto size = static_cast<int64_t>(values.size() * sizeof(Element));
    tensor = block.narrow(0, offset, size).view(c10::CppTypeToScalarType<Element>::value);
    offset += array_bytes(values);
  });
  return batch;
}

}  // namespace fastsft
