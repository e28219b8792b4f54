// Products of cublas_lt/ as operations of their streams.
#include <algorithm>

#include "cublas_lt/cublas_lt.h"
#include "device/device.h"

namespace fake_cublas_lt {
namespace {

using fake_device::Ranges;

// Columns that are further apart than this many are taken as one range.
constexpr int64_t kMaxColumns = 64;
// cuBLASLt's pages let any algorithm use scratch while it runs; this much at least.
constexpr size_t kMinScratchBytes = 256;

void add_ranges(Ranges& ranges, const void* data, const Layout& layout, bool write) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  if (layout.ld == layout.rows || layout.columns > kMaxColumns) {
    ranges.push_back({begin, begin + layout.bytes(), write});
    return;
  }
  const size_t bytes = static_cast<size_t>(layout.rows) * layout.element_bytes();
  for (int64_t column = 0; column < layout.columns; ++column) {
    const uintptr_t at = begin + static_cast<size_t>(column * layout.ld) * layout.element_bytes();
    ranges.push_back({at, at + bytes, write});
  }
}

}  // namespace

void report_wrong_call(const char* message) { fake_device::report_wrong_call(message); }

cublasStatus_t run(const Product& product, cudaStream_t stream) {
  for (const void* pointer : {product.a, product.b, static_cast<const void*>(product.d),
                              static_cast<const void*>(product.workspace)}) {
    if (!fake_device::is_device_memory(pointer)) {
      report_wrong_call("cublasLtMatmul of memory that is not the device's");
    }
  }
  Ranges ranges;
  const bool has_scales = has_8_bits(product.a_layout.type);
  if (has_scales) {
    const bool vectors = product.desc.has_vectors();
    const auto add_scales = [&](const float* scales, int64_t count) {
      if (!fake_device::is_device_memory(scales))
        report_wrong_call("scales of a product that are not in the device's memory");
      const auto begin = reinterpret_cast<uintptr_t>(scales);
      ranges.push_back({begin, begin + sizeof(float) * (vectors ? count : 1), false});
    };
    add_scales(product.desc.scale_a, product.d_layout.rows);
    add_scales(product.desc.scale_b, product.d_layout.columns);
  }
  add_ranges(ranges, product.a, product.a_layout, false);
  add_ranges(ranges, product.b, product.b_layout, false);
  if (product.beta != 0) add_ranges(ranges, product.c, product.c_layout, false);
  ranges.push_back(
      fake_device::writes(product.workspace, std::max(product.workspace_bytes, kMinScratchBytes)));
  add_ranges(ranges, product.d, product.d_layout, true);
  const std::string shape = std::to_string(product.d_layout.rows) + "x" +
                            std::to_string(product.d_layout.columns) + "x" +
                            std::to_string(product.inner());
  fake_device::enqueue(
      stream, (has_scales ? "fp8 product " : "product ") + shape, std::move(ranges),
      [product] {
        product.compute();
        return true;
      },
      product.flops());
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace fake_cublas_lt
