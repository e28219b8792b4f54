#include <array>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "sync/sync_plan.h"

namespace fastsft {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 15> kTorchNames = {{
    {DType::kBool, "bool"},
    {DType::kU8, "uint8"},
    {DType::kI8, "int8"},
    {DType::kF8E5M2, "float8_e5m2"},
    {DType::kF8E4M3, "float8_e4m3fn"},
    {DType::kF8E8M0, "float8_e8m0fnu"},
    {DType::kI16, "int16"},
    {DType::kU16, "uint16"},
    {DType::kF16, "float16"},
    {DType::kBF16, "bfloat16"},
    {DType::kI32, "int32"},
    {DType::kU32, "uint32"},
    {DType::kF32, "float32"},
    {DType::kF64, "float64"},
    {DType::kI64, "int64"},
}};

constexpr std::string_view kPrefix = "torch.";

}  // namespace

DType parse_wire_dtype(const std::string& name) {
  std::string_view bare = name;
  if (bare.starts_with(kPrefix)) bare.remove_prefix(kPrefix.size());
  for (const auto& [dtype, torch_name] : kTorchNames) {
    if (bare == torch_name || name == dtype_name(dtype)) return dtype;
  }
  throw_invalid(
      "dtype \"", name,
      "\": expected a name like \"bfloat16\", \"torch.bfloat16\" or \"BF16\"; complex and "
      "quantized tensors cannot be sent, keep them as real ones or out of the state dict");
}

std::string torch_dtype_name(DType dtype) {
  for (const auto& [known, torch_name] : kTorchNames) {
    if (known == dtype) return std::string(torch_name);
  }
  FASTSFT_ASSERT(false, dtype_name(dtype));
}

}  // namespace fastsft
