#pragma once

namespace fastsft {

// GPU architectures for which this core has kernels, as CMake names them: "80,90" means machine
// code and PTX for both. Empty: it has no CUDA kernels.
extern const char* const kCudaArchitectures;

inline bool has_cuda() { return *kCudaArchitectures != '\0'; }

}  // namespace fastsft
