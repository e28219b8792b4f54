#include "checkpoint/tensor_source.h"

#include "core/error.h"

namespace fastsft {
namespace {

DType stored_dtype(at::ScalarType type, const std::string& where, const std::string& name) {
  switch (type) {
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kDouble:
      return DType::kF64;
    default:
      throw_invalid(where, ": ", name, ": expected floating-point weights, got ",
                    c10::toString(type), "; quantized weights cannot be trained");
  }
}

}  // namespace

void set_tensor(ModelLoader& loader, const std::string& name, const at::Tensor& tensor,
                const std::string& where) {
  require(tensor.device().is_cpu() && tensor.is_contiguous(), where, ": ", name,
          ": expected a contiguous tensor on the CPU");
  const std::vector<uint64_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  loader.set(name, stored_dtype(tensor.scalar_type(), where, name), shape,
             static_cast<const std::byte*>(tensor.const_data_ptr()), where);
}

DType weight_dtype(const std::string& name) {
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  throw_invalid("save_dtype: expected float32, bfloat16 or float16, got \"", name, "\"");
}

}  // namespace fastsft
