#include "ops/gemm/cublaslt_gemm.h"

#include "core/error.h"

namespace fastsft::cuda {
namespace {

void check(cublasStatus_t status, const GemmKey& key, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_runtime("gemm: ", call, " failed for [", key.m, ", ", key.k, "] x [", key.k, ", ", key.n,
                "]: ", cublasLtGetStatusString(status));
}

// Describes a row-major matrix [rows, columns] with row stride `stride` as column-major [columns,
// rows].
LtHandle<cublasLtMatrixLayout_t> layout(const GemmKey& key, Dtype dtype, int64_t rows,
                                        int64_t columns, int64_t stride) {
  const cudaDataType_t type = dtype == Dtype::kFloat  ? CUDA_R_32F
                              : dtype == Dtype::kHalf ? CUDA_R_16F
                                                      : CUDA_R_16BF;
  cublasLtMatrixLayout_t result = nullptr;
  check(cublasLtMatrixLayoutCreate(&result, type, static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), stride),
        key, "cublasLtMatrixLayoutCreate");
  return LtHandle<cublasLtMatrixLayout_t>(result);
}

void set_transpose(const GemmKey& key, cublasLtMatmulDesc_t desc,
                   cublasLtMatmulDescAttributes_t attribute, bool transpose) {
  const cublasOperation_t value = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value), key,
        "cublasLtMatmulDescSetAttribute");
}

LtHandle<cublasLtMatmulDesc_t> describe(const GemmKey& key) {
  cublasLtMatmulDesc_t result = nullptr;
  const auto compute = key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&result, compute, CUDA_R_32F), key, "cublasLtMatmulDescCreate");
  LtHandle<cublasLtMatmulDesc_t> desc(result);
  set_transpose(key, result, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b);
  set_transpose(key, result, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a);
  return desc;
}

template <typename Value>
void prefer(const GemmKey& key, cublasLtMatmulPreference_t preference,
            cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), key,
        "cublasLtMatmulPreferenceSetAttribute");
}

LtHandle<cublasLtMatmulPreference_t> preferences(const GemmKey& key, size_t workspace_bytes) {
  cublasLtMatmulPreference_t result = nullptr;
  check(cublasLtMatmulPreferenceCreate(&result), key, "cublasLtMatmulPreferenceCreate");
  LtHandle<cublasLtMatmulPreference_t> owner(result);
  prefer(key, result, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
  // Partial sums are added in the workspace in float32. The result does not depend on timing, and
  // is rounded once.
  prefer(key, result, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(key, result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
         static_cast<uint32_t>(key.alignment_b));
  prefer(key, result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
         static_cast<uint32_t>(key.alignment_a));
  prefer(key, result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
         static_cast<uint32_t>(key.alignment_add));
  prefer(key, result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
         static_cast<uint32_t>(key.alignment_out));
  return owner;
}

}  // namespace

LtProduct::LtProduct(const GemmKey& key)
    : key_(key),
      desc_(describe(key)),
      a_(layout(key, key.dtype, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k,
                key.lda)),
      b_(layout(key, key.dtype, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n,
                key.ldb)),
      addend_(layout(key, key.out_dtype, key.m, key.n, key.ldadd)),
      out_(layout(key, key.out_dtype, key.m, key.n, key.ldout)) {}

std::vector<cublasLtMatmulAlgo_t> LtProduct::propose(cublasLtHandle_t handle,
                                                     size_t workspace_bytes, int count) const {
  const auto preference = preferences(key_, workspace_bytes);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  int returned = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, desc_.get(), b_.get(), a_.get(), addend_.get(),
                                     out_.get(), preference.get(), count, found.data(), &returned);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, key_, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < returned; ++i) {
    const auto& result = found[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

bool LtProduct::takes(cublasLtHandle_t handle, size_t workspace_bytes,
                      const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      handle, desc_.get(), b_.get(), a_.get(), addend_.get(), out_.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
}

void LtProduct::run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                    const GemmOperands& operands, void* workspace, size_t workspace_bytes,
                    cudaStream_t stream) const {
  const float alpha = 1.0f;
  check(cublasLtMatmul(handle, desc_.get(), &alpha, operands.b, b_.get(), operands.a, a_.get(),
                       &operands.beta, operands.addend, addend_.get(), operands.out, out_.get(),
                       &algorithm, workspace, workspace_bytes, stream),
        key_, "cublasLtMatmul");
}

}  // namespace fastsft::cuda
