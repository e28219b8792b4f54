#include "ops/gemm/cublaslt_gemm.h"

#include "core/error.h"

namespace fastsft::cuda {
namespace {

void check(cublasStatus_t status, const GemmKey& key, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_runtime("gemm: ", call, " failed for [", key.m, ", ", key.k, "] x [", key.k, ", ", key.n,
                "]: ", cublasLtGetStatusString(status));
}

cudaDataType_t type_of(Dtype dtype) {
  if (dtype == Dtype::kFloat) return CUDA_R_32F;
  return dtype == Dtype::kHalf ? CUDA_R_16F : CUDA_R_16BF;
}

// Returns the type of an operand whose 8-bit type is `fp8`.
cudaDataType_t type_of(const GemmKey& key, Fp8Type fp8) {
  if (!key.has_scales()) return type_of(key.dtype);
  return fp8 == Fp8Type::kE5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

// Describes a row-major matrix [rows, columns] with row stride `stride` as column-major [columns,
// rows].
LtHandle<cublasLtMatrixLayout_t> layout(const GemmKey& key, cudaDataType_t type, int64_t rows,
                                        int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t result = nullptr;
  check(cublasLtMatrixLayoutCreate(&result, type, static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), stride),
        key, "cublasLtMatrixLayoutCreate");
  return LtHandle<cublasLtMatrixLayout_t>(result);
}

template <typename Value>
void set(const GemmKey& key, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  check(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value), key,
        "cublasLtMatmulDescSetAttribute");
}

LtHandle<cublasLtMatmulDesc_t> describe(const GemmKey& key) {
  cublasLtMatmulDesc_t result = nullptr;
  const auto compute = key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&result, compute, CUDA_R_32F), key, "cublasLtMatmulDescCreate");
  LtHandle<cublasLtMatmulDesc_t> desc(result);
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(key, result, CUBLASLT_MATMUL_DESC_TRANSA, operation(key.transpose_b));
  set(key, result, CUBLASLT_MATMUL_DESC_TRANSB, operation(key.transpose_a));
  if (!key.has_scales()) return desc;
  set(key, result, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{key.fast_accumulation});
  if (key.rowwise_scales) {
    const auto mode = int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F};
    set(key, result, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(key, result, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
  }
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
      a_(layout(key, type_of(key, key.fp8), key.transpose_a ? key.k : key.m,
                key.transpose_a ? key.m : key.k, key.lda)),
      b_(layout(key, type_of(key, Fp8Type::kE4m3), key.transpose_b ? key.n : key.k,
                key.transpose_b ? key.k : key.n, key.ldb)),
      addend_(layout(key, type_of(key.out_dtype), key.m, key.n, key.ldadd)),
      out_(layout(key, type_of(key.out_dtype), key.m, key.n, key.ldout)) {}

void LtProduct::set_scales(const GemmOperands& operands) const {
  if (!key_.has_scales()) return;
  set(key_, desc_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.scale_b);
  set(key_, desc_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.scale_a);
}

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
  set_scales(operands);
  check(cublasLtMatmul(handle, desc_.get(), &alpha, operands.b, b_.get(), operands.a, a_.get(),
                       &operands.beta, operands.addend, addend_.get(), operands.out, out_.get(),
                       &algorithm, workspace, workspace_bytes, stream),
        key_, "cublasLtMatmul");
}

}  // namespace fastsft::cuda
