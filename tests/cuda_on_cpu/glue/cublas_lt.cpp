// cuBLASLt's calls (shim/cublasLt.h) by torch's products on the CPU. It is as strict as its pages:
// matrices are column-major, operands have the alignments that an algorithm was asked for with, C
// is not read when beta is 0. It proposes up to three algorithms, which add the inner dimension in
// one, two or three parts and so differ in their last bits; how long each takes is what a test
// says.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>

#include "ops/cuda/arguments.h"

struct cublasLtContext {};
struct cublasLtMatmulDesc {
  cublasComputeType_t compute;
  cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
};
struct cublasLtMatrixLayout {
  cudaDataType_t type;
  int64_t rows, columns, ld;
};
struct cublasLtMatmulPreference {
  uint64_t workspace = 0;
  uint32_t reductions = ~0u;
  std::array<uint32_t, 4> alignments{256, 256, 256, 256};
};

namespace fastsft::cuda {
inline uint64_t at_most_64_of(const at::Tensor& tensor) {
  return std::min<uint64_t>(alignment_of(tensor), 64);
}
}  // namespace fastsft::cuda

namespace {

// The fields of an algorithm's data.
enum { kMagic, kParts, kAlignA, kAlignB, kAlignC, kAlignD };
constexpr uint64_t kOurs = 0x6c74;
constexpr std::array<uint64_t, 3> kAllParts{1, 2, 3};

std::array<float, 3> milliseconds{1, 1, 1};  // of a run by each
float loading = 0;                           // what the first run of each takes beyond
std::array<bool, 3> loaded{};
int64_t refuses_above =
    INT64_MAX;  // columns of D: from there on all but the first are refused when they run

at::ScalarType dtype_of(const cublasLtMatrixLayout& layout) {
  return layout.type == CUDA_R_32F   ? at::kFloat
         : layout.type == CUDA_R_16F ? at::kHalf
                                     : at::kBFloat16;
}

// Column-major.
at::Tensor matrix(const void* data, const cublasLtMatrixLayout& layout) {
  return at::from_blob(const_cast<void*>(data), {layout.rows, layout.columns}, {1, layout.ld},
                       at::TensorOptions().dtype(dtype_of(layout)));
}

bool fits(const cublasLtMatmulDesc& desc, const cublasLtMatrixLayout& a,
          const cublasLtMatrixLayout& b, const cublasLtMatrixLayout& c,
          const cublasLtMatrixLayout& d) {
  const bool turn_a = desc.trans_a == CUBLAS_OP_T, turn_b = desc.trans_b == CUBLAS_OP_T;
  const int64_t m = turn_a ? a.columns : a.rows, inner_a = turn_a ? a.rows : a.columns;
  const int64_t n = turn_b ? b.rows : b.columns, inner_b = turn_b ? b.columns : b.rows;
  return inner_a == inner_b && d.rows == m && d.columns == n && c.rows == m && c.columns == n &&
         c.type == d.type && a.type == b.type && (d.type == a.type || d.type == CUDA_R_32F);
}

int64_t inner_size(const cublasLtMatmulDesc& desc, const cublasLtMatrixLayout& a) {
  return desc.trans_a == CUBLAS_OP_T ? a.rows : a.columns;
}

size_t workspace_of(uint64_t parts, const cublasLtMatrixLayout& d) {
  return parts == 1 ? 0 : parts * sizeof(float) * static_cast<size_t>(d.rows * d.columns);
}

bool aligned(const void* data, uint64_t alignment) {
  return reinterpret_cast<uint64_t>(data) % alignment == 0;
}

// TF32 keeps ten bits after the leading one.
at::Tensor operand(const at::Tensor& values, cublasComputeType_t compute) {
  at::Tensor wide = values.to(at::kFloat).contiguous();
  if (compute != CUBLAS_COMPUTE_32F_FAST_TF32) return wide;
  wide = wide.clone();
  auto* bits = static_cast<uint32_t*>(wide.data_ptr());
  for (int64_t i = 0; i < wide.numel(); ++i) bits[i] &= ~uint32_t{0x1fff};
  return wide;
}

}  // namespace

extern "C" {
// Milliseconds of the device's clock that a run by each algorithm takes.
void cuda_on_cpu_gemm_times(float one, float two, float three) { milliseconds = {one, two, three}; }
void cuda_on_cpu_gemm_loading(float first_run) { loading = first_run, loaded = {}; }
void cuda_on_cpu_gemm_refuses_above(int64_t rows) { refuses_above = rows; }
}

size_t cublasLtGetVersion() { return 130100; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "not supported";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *desc = new cublasLtMatmulDesc{compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
  (attribute == CUBLASLT_MATMUL_DESC_TRANSA ? desc->trans_a : desc->trans_b) =
      *static_cast<const cublasOperation_t*>(value);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  if (rows == 0 || columns == 0 || ld < static_cast<int64_t>(rows))
    return CUBLAS_STATUS_INVALID_VALUE;
  *layout =
      new cublasLtMatrixLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  const bool workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  if (bytes != (workspace ? sizeof(uint64_t) : sizeof(uint32_t)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace) {
    preference->workspace = *static_cast<const uint64_t*>(value);
    return CUBLAS_STATUS_SUCCESS;
  }
  const uint32_t number = *static_cast<const uint32_t*>(value);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    preference->reductions = number;
  } else {
    preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = number;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* returned) {
  *returned = 0;
  if (!fits(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  const auto& alignments = preference->alignments;
  // As on GPUs whose narrow products take two elements at once.
  if (a->type != CUDA_R_32F && *std::ranges::min_element(alignments) < 4)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const uint64_t parts : kAllParts) {
    const size_t workspace = workspace_of(parts, *d);
    const bool split = parts > 1;
    if (*returned == wanted || static_cast<int64_t>(parts) > inner_size(*desc, *a)) break;
    if (workspace > preference->workspace ||
        (split && !(preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)))
      continue;
    auto& result = results[(*returned)++];
    result = {{{kOurs, parts, alignments[0], alignments[1], alignments[2], alignments[3], 0, 0}},
              workspace,
              CUBLAS_STATUS_SUCCESS,
              1.0f};
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (algorithm->data[kMagic] != kOurs || !fits(*desc, *a, *b, *c, *d))
    return CUBLAS_STATUS_INVALID_VALUE;
  const uint64_t parts = algorithm->data[kParts];
  if (static_cast<int64_t>(parts) > inner_size(*desc, *a)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = workspace_of(parts, *d);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t workspace_bytes,
                              cudaStream_t) {
  cublasLtMatmulHeuristicResult_t checked{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, desc, a_layout, b_layout, c_layout,
                                                        d_layout, algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  const auto& needs = algorithm->data;
  if (checked.workspaceSize > workspace_bytes || !aligned(a, needs[kAlignA]) ||
      !aligned(b, needs[kAlignB]) || !aligned(d, needs[kAlignD]) ||
      (kept != 0 && !aligned(c, needs[kAlignC])))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (needs[kParts] > 1 && d_layout->columns > refuses_above) return CUBLAS_STATUS_NOT_SUPPORTED;
  at::Tensor left = operand(matrix(a, *a_layout), desc->compute);
  at::Tensor right = operand(matrix(b, *b_layout), desc->compute);
  if (desc->trans_a == CUBLAS_OP_T) left = left.t();
  if (desc->trans_b == CUBLAS_OP_T) right = right.t();
  const auto parts = static_cast<int64_t>(algorithm->data[kParts]), inner = left.size(1);
  at::Tensor sum;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = inner * part / parts, size = inner * (part + 1) / parts - begin;
    const at::Tensor one =
        at::matmul(left.narrow(1, begin, size), right.narrow(0, begin, size)).mul_(scale);
    sum = sum.defined() ? sum.add_(one) : one;
  }
  if (kept != 0) sum.add_(matrix(c, *c_layout).to(at::kFloat), kept);
  matrix(d, *d_layout).copy_(sum);
  const auto number = static_cast<size_t>(parts - 1);
  cuda_on_cpu::advance_clock(milliseconds[number] + (loaded[number] ? 0 : loading));
  loaded[number] = true;
  return CUBLAS_STATUS_SUCCESS;
}
