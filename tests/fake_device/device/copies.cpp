// Copies and fills, with the checks that a driver makes and some that it leaves to luck.
#include <cstring>

#include "memory.h"
#include "state.h"

namespace fake_device {
namespace {

bool kind_fits(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    default:
      return kind == cudaMemcpyDefault;
  }
}

const char* name_of(Place place) {
  return place == Place::kDevice ? "device" : place == Place::kPinned ? "pinned" : "pageable";
}

cudaError_t copy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const Place to = place_of(dst), from = place_of(src);
  if (!kind_fits(kind, to == Place::kDevice, from == Place::kDevice)) {
    report_wrong_call("cudaMemcpy of kind " + std::to_string(kind) + " from " + name_of(from) +
                      " to " + name_of(to) + " memory");
    return cudaErrorInvalidValue;
  }
  if (!is_inside(dst, bytes) || !is_inside(src, bytes)) {
    report_wrong_call("cudaMemcpy beyond the end of an allocation");
    return cudaErrorInvalidValue;
  }
  Ranges ranges;
  if (from != Place::kPageable) ranges.push_back(reads(src, bytes));
  if (to != Place::kPageable) ranges.push_back(writes(dst, bytes));
  const std::string name = std::string("copy ") + name_of(from) + " to " + name_of(to);
  if (from == Place::kPageable) {  // a driver copies such a source before the call returns
    const auto* begin = static_cast<const char*>(src);
    const auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    enqueue(stream, name, std::move(ranges), [=] {
      std::memcpy(dst, staged->data(), bytes);
      return true;
    });
  } else {
    enqueue(stream, name, std::move(ranges), [=] {
      std::memmove(dst, src, bytes);
      return true;
    });
  }
  if (to == Place::kPageable) wait_stream(stream);
  return cudaSuccess;
}

}  // namespace
}  // namespace fake_device

using namespace fake_device;

EXPORTED cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                                     cudaStream_t stream) {
  COUNT_CALL();
  return returned(copy(dst, src, bytes, kind, stream));
}
EXPORTED cudaError_t cudaMemcpyPeerAsync(void* dst, int, const void* src, int, size_t bytes,
                                         cudaStream_t stream) {
  COUNT_CALL();
  return returned(copy(dst, src, bytes, cudaMemcpyDefault, stream));
}
EXPORTED cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  COUNT_CALL();
  const cudaError_t error = copy(dst, src, bytes, kind, nullptr);
  wait_stream(nullptr);
  return returned(error);
}
EXPORTED cudaError_t cudaMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src,
                                       size_t src_pitch, size_t width, size_t height,
                                       cudaMemcpyKind kind, cudaStream_t stream) {
  COUNT_CALL();
  for (size_t row = 0; row < height; ++row) {
    auto* const to = static_cast<char*>(dst) + row * dst_pitch;
    const auto* const from = static_cast<const char*>(src) + row * src_pitch;
    if (const cudaError_t error = copy(to, from, width, kind, stream)) return returned(error);
  }
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  COUNT_CALL();
  if (!is_inside(dst, bytes)) report_wrong_call("cudaMemset beyond the end of an allocation");
  enqueue(stream, "fill", {writes(dst, bytes)}, [=] {
    std::memset(dst, value, bytes);
    return true;
  });
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaMemset(void* dst, int value, size_t bytes) {
  return cudaMemsetAsync(dst, value, bytes, nullptr);
}
