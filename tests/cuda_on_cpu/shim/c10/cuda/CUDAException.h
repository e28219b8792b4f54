#pragma once

#include <c10/util/Exception.h>

#include "cuda_runtime_api.h"

#define C10_CUDA_CHECK(call) TORCH_CHECK((call) == cudaSuccess, #call)

// What the launches before it did wrong, as an error of the op.
#define C10_CUDA_KERNEL_LAUNCH_CHECK()                               \
  do {                                                               \
    const std::string wrong = cuda_on_cpu::take_reports();           \
    TORCH_CHECK(wrong.empty(), "CUDA kernels on the CPU:\n", wrong); \
  } while (0)
