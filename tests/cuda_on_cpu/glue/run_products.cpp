// Products of tests/cublas_lt at once; how long each takes is what a test says.
#include <algorithm>
#include <array>

#include "cublas_lt/cublas_lt.h"
#include "ops/cuda/arguments.h"

namespace fastsft::cuda {
inline uint64_t at_most_64_of(const at::Tensor& tensor) {
  return std::min<uint64_t>(alignment_of(tensor), 64);
}
}  // namespace fastsft::cuda

namespace {

// By the number of parts, from 1 on.
std::array<float, 3> milliseconds{1, 1, 1};
float loading = 0;  // added to the first run of each
std::array<bool, 3> loaded{};
// Columns of D from which on algorithms of several parts are refused when they run.
int64_t refuses_above = INT64_MAX;

}  // namespace

namespace fake_cublas_lt {

void report_wrong_call(const char* message) { TORCH_CHECK(false, message); }

cublasStatus_t run(const Product& product, cudaStream_t) {
  if (product.parts > 1 && product.d_layout.columns > refuses_above)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  product.compute();
  const auto number = static_cast<size_t>(product.parts - 1);
  cuda_on_cpu::advance_clock(milliseconds[number] + (loaded[number] ? 0 : loading));
  loaded[number] = true;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace fake_cublas_lt

extern "C" {
void cuda_on_cpu_gemm_times(float one, float two, float three) { milliseconds = {one, two, three}; }
void cuda_on_cpu_gemm_loading(float first_run) { loading = first_run, loaded = {}; }
void cuda_on_cpu_gemm_refuses_above(int64_t columns) { refuses_above = columns; }
}
