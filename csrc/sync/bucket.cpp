#include "sync/bucket.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr uint64_t kSliceMultiple = 16;  // larger than any element, so that none is split

class BucketList {
 public:
  Bucket& open() { return buckets_.back(); }
  void begin_bucket() {
    if (buckets_.empty() || !open().pieces.empty()) buckets_.emplace_back();
  }
  void append(size_t tensor, uint64_t begin, uint64_t bytes) {
    open().pieces.push_back({tensor, begin, bytes, open().bytes});
    open().bytes += bytes;
  }
  std::vector<Bucket> take() {
    if (!buckets_.empty() && open().pieces.empty()) buckets_.pop_back();
    return std::move(buckets_);
  }

 private:
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> cut_vllm_chunks(const SyncPlan& plan, uint64_t buffer_bytes) {
  BucketList list;
  list.begin_bucket();
  for (size_t tensor = 0; tensor < plan.sizes().size(); ++tensor) {
    list.append(tensor, 0, plan.sizes()[tensor]);
    if (list.open().bytes > buffer_bytes) list.begin_bucket();
  }
  return list.take();
}

std::vector<Bucket> cut_native_buckets(const SyncPlan& plan, uint64_t bucket_bytes) {
  require(bucket_bytes >= kSliceMultiple && bucket_bytes % kSliceMultiple == 0,
          "bucket_bytes: expected a multiple of ", kSliceMultiple, ", got ", bucket_bytes);
  BucketList list;
  list.begin_bucket();
  for (size_t tensor = 0; tensor < plan.sizes().size(); ++tensor) {
    const uint64_t bytes = plan.sizes()[tensor];
    if (bytes == 0) continue;
    if (bytes > bucket_bytes) {
      for (uint64_t begin = 0; begin < bytes;) {
        list.begin_bucket();
        const uint64_t slice = std::min(bucket_bytes, bytes - begin);
        list.append(tensor, begin, slice);
        begin += slice;
      }
      continue;
    }
    if (list.open().bytes + bytes > bucket_bytes) list.begin_bucket();
    list.append(tensor, 0, bytes);
  }
  return list.take();
}

std::vector<Bucket> cut_tensor_batches(const SyncPlan& plan, uint64_t batch_bytes) {
  BucketList list;
  list.begin_bucket();
  for (size_t tensor = 0; tensor < plan.sizes().size(); ++tensor) {
    const uint64_t bytes = plan.sizes()[tensor];
    if (bytes == 0) continue;
    if (!list.open().pieces.empty() && list.open().bytes + bytes > batch_bytes) list.begin_bucket();
    list.append(tensor, 0, bytes);
  }
  return list.take();
}

namespace {

at::ScalarType scalar_type(DType dtype) {
  static const auto& names = c10::getStringToDtypeMap();
  const auto found = names.find(torch_dtype_name(dtype));
  FASTSFT_ASSERT(found != names.end(), dtype_name(dtype));
  return found->second;
}

void check_shape(const TensorSpec& spec, const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const bool same = std::equal(
      sizes.begin(), sizes.end(), spec.shape.begin(), spec.shape.end(),
      [](int64_t size, uint64_t planned) { return static_cast<uint64_t>(size) == planned; });
  require(same, "weight sync: tensor ", spec.name,
          " changed its shape after the plan was made; make a new plan");
}

at::Tensor bytes_of(const at::Tensor& contiguous) { return contiguous.view({-1}).view(at::kByte); }

at::Tensor part(const at::Tensor& bytes, uint64_t begin, uint64_t size) {
  return bytes.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(size));
}

// Returns true if a pointer can copy the tensor's bytes. memcpy avoids creating views, a fixed cost
// that each tensor would pay in every sync.
bool is_plain(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.is_cpu() && tensor.scalar_type() == dtype && tensor.is_contiguous() &&
         !tensor.is_conj() && !tensor.is_neg();
}

void pack_piece(const SyncPiece& piece, const at::Tensor& tensor, at::ScalarType dtype,
                const at::Tensor& buffer) {
  if (is_plain(buffer, at::kByte) && is_plain(tensor, dtype)) {
    std::memcpy(buffer.mutable_data_ptr<uint8_t>() + piece.offset,
                static_cast<const std::byte*>(tensor.const_data_ptr()) + piece.begin, piece.bytes);
    return;
  }
  const at::Tensor wire = tensor.detach().to(dtype).contiguous();
  part(buffer, piece.offset, piece.bytes).copy_(part(bytes_of(wire), piece.begin, piece.bytes));
}

void unpack_piece(const SyncPiece& piece, const at::Tensor& tensor, at::ScalarType dtype,
                  const at::Tensor& buffer) {
  FASTSFT_ASSERT(tensor.is_contiguous() && tensor.scalar_type() == dtype);
  if (is_plain(buffer, at::kByte) && is_plain(tensor, dtype)) {
    std::memcpy(static_cast<std::byte*>(tensor.mutable_data_ptr()) + piece.begin,
                buffer.const_data_ptr<uint8_t>() + piece.offset, piece.bytes);
    return;
  }
  part(bytes_of(tensor), piece.begin, piece.bytes).copy_(part(buffer, piece.offset, piece.bytes));
}

template <typename Copy>
void for_each_piece(const SyncPlan& plan, const Bucket& bucket, size_t first,
                    std::span<const at::Tensor> tensors, const at::Tensor& buffer, Copy copy) {
  FASTSFT_ASSERT(static_cast<uint64_t>(buffer.numel()) >= bucket.bytes);
  for (const auto& piece : bucket.pieces) {
    if (piece.bytes == 0) continue;
    FASTSFT_ASSERT(piece.tensor >= first && piece.tensor - first < tensors.size());
    const TensorSpec& spec = plan.tensors()[piece.tensor];
    const at::Tensor& tensor = tensors[piece.tensor - first];
    check_shape(spec, tensor);
    copy(piece, tensor, scalar_type(spec.dtype), buffer);
  }
}

}  // namespace

void pack(const SyncPlan& plan, const Bucket& bucket, size_t first,
          std::span<const at::Tensor> tensors, const at::Tensor& buffer) {
  for_each_piece(plan, bucket, first, tensors, buffer, pack_piece);
}

void unpack(const SyncPlan& plan, const Bucket& bucket, size_t first,
            std::span<const at::Tensor> tensors, const at::Tensor& buffer) {
  for_each_piece(plan, bucket, first, tensors, buffer, unpack_piece);
}

}  // namespace fastsft
