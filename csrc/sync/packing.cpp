#include "sync/packing.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "sync/wire_dtype.h"

namespace fastsft {
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

const at::Tensor& tensor_of(const Piece& piece, size_t first, std::span<const at::Tensor> tensors) {
  FASTSFT_ASSERT(piece.tensor >= first && piece.tensor - first < tensors.size());
  return tensors[piece.tensor - first];
}

at::Tensor bytes_of(const at::Tensor& contiguous) { return contiguous.view({-1}).view(at::kByte); }

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu() && from.is_cpu()) {
    std::memcpy(to.mutable_data_ptr<uint8_t>(), from.const_data_ptr<uint8_t>(),
                static_cast<size_t>(from.numel()));
  } else {
    to.copy_(from);
  }
}

at::Tensor part(const at::Tensor& bytes, uint64_t begin, uint64_t size) {
  return bytes.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(size));
}

}  // namespace

void pack(const SyncPlan& plan, const Bucket& bucket, size_t first,
          std::span<const at::Tensor> tensors, const at::Tensor& buffer) {
  for (const auto& piece : bucket.pieces) {
    if (piece.bytes == 0) continue;
    const TensorSpec& spec = plan.tensors()[piece.tensor];
    const at::Tensor& tensor = tensor_of(piece, first, tensors);
    check_shape(spec, tensor);
    const at::Tensor wire = tensor.detach().to(scalar_type(spec.dtype)).contiguous();
    copy_bytes(part(buffer, piece.offset, piece.bytes),
               part(bytes_of(wire), piece.begin, piece.bytes));
  }
}

void unpack(const SyncPlan& plan, const Bucket& bucket, size_t first,
            std::span<const at::Tensor> tensors, const at::Tensor& buffer) {
  for (const auto& piece : bucket.pieces) {
    if (piece.bytes == 0) continue;
    const TensorSpec& spec = plan.tensors()[piece.tensor];
    const at::Tensor& tensor = tensor_of(piece, first, tensors);
    check_shape(spec, tensor);
    FASTSFT_ASSERT(tensor.is_contiguous() && tensor.scalar_type() == scalar_type(spec.dtype));
    copy_bytes(part(bytes_of(tensor), piece.begin, piece.bytes),
               part(buffer, piece.offset, piece.bytes));
  }
}

}  // namespace fastsft
