#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

#include "core/trace.h"

namespace fastsft {
namespace {

void push(const char* name) { nvtxRangePushA(name); }
void pop() { nvtxRangePop(); }

const bool kNvtxCudaRegistered = [] {
  // Nsight sets NVTX_INJECTION64_PATH to its library. Without a profiler, ranges would only cost
  // time.
  const bool profiled =
      std::getenv("NVTX_INJECTION64_PATH") != nullptr || std::getenv("FASTSFT_NVTX") != nullptr;
  if (profiled) trace::outside_ranges() = {&push, &pop};
  return true;
}();

}  // namespace
}  // namespace fastsft
