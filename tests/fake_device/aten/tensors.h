// Tensors of the fake device as CPU tensors: their memory is the host's.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/device.h"

namespace fake_device {

// A CPU tensor with the same memory. A tensor that is on the CPU already is copied: the host may
// change it before the operation runs.
at::Tensor cpu_view(const at::Tensor& tensor);

// A meta tensor with the same sizes, strides and dtype; a Python number stays as it is.
at::Tensor meta_like(const at::Tensor& tensor);

// The span from the first element to the last, and the bytes of the elements.
Range range_of(const at::Tensor& tensor, bool write);

cudaStream_t current_stream();

}  // namespace fake_device
