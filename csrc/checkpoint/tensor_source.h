#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "checkpoint/model_loader.h"

namespace fastsft {

// Gives a tensor (contiguous, on the CPU) to the loader, under its Hugging Face name.
void set_tensor(ModelLoader& loader, const std::string& name, const at::Tensor& tensor,
                const std::string& where);

// "float32", "bfloat16" or "float16"; std::invalid_argument for other names.
DType weight_dtype(const std::string& name);

}  // namespace fastsft
