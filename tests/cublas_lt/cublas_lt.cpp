// It proposes up to three algorithms, which add the inner dimension in one, two or three parts and
// so differ in their last bits.
#include "cublas_lt/cublas_lt.h"

#include <algorithm>
#include <cstring>

using namespace fake_cublas_lt;

namespace {

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = ~0u;
  std::array<uint32_t, 4> alignments{256, 256, 256, 256};  // of a, b, c and d
};

// The words of an algorithm's data.
enum { kMagic, kParts, kAlignA, kAlignB, kAlignC, kAlignD };
constexpr uint64_t kOurs = 0x6c74;

Desc& desc_of(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Desc*>(handle); }
Layout& layout_of(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<Layout*>(handle); }
Preference& preference_of(cublasLtMatmulPreference_t handle) {
  return *reinterpret_cast<Preference*>(handle);
}

// cuBLASLt's table of 8-bit products: the first operand transposed, the second not, all columns at
// multiples of 16 bytes, one of the two e4m3, both with scales of one mode.
bool fits_8_bits(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  const bool are_fp8 = has_8_bits(a.type) && has_8_bits(b.type) &&
                       (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3);
  const auto aligned = [](const Layout& layout) {
    const auto bytes = static_cast<int64_t>(layout.element_bytes());
    return layout.rows * bytes % 16 == 0 && layout.ld * bytes % 16 == 0;
  };
  return are_fp8 && desc.compute == CUBLAS_COMPUTE_32F && desc.trans_a == CUBLAS_OP_T &&
         desc.trans_b == CUBLAS_OP_N && aligned(a) && aligned(b) && aligned(d) &&
         !has_8_bits(d.type) && desc.scale_a && desc.scale_b && desc.mode_a == desc.mode_b;
}

bool fits(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool turn_a = desc.trans_a == CUBLAS_OP_T, turn_b = desc.trans_b == CUBLAS_OP_T;
  const int64_t m = turn_a ? a.columns : a.rows, inner_a = turn_a ? a.rows : a.columns;
  const int64_t n = turn_b ? b.rows : b.columns, inner_b = turn_b ? b.columns : b.rows;
  const bool same_sizes =
      inner_a == inner_b && d.rows == m && d.columns == n && c.rows == m && c.columns == n;
  if (!same_sizes || c.type != d.type) return false;
  if (has_8_bits(a.type) || has_8_bits(b.type)) return fits_8_bits(desc, a, b, d);
  const bool has_scales = desc.scale_a || desc.scale_b || desc.has_vectors();
  return a.type == b.type && (d.type == a.type || d.type == CUDA_R_32F) && !has_scales;
}

int64_t inner_size(const Desc& desc, const Layout& a) {
  return desc.trans_a == CUBLAS_OP_T ? a.rows : a.columns;
}

size_t workspace_bytes_of(uint64_t parts, const Layout& d) {
  return parts == 1 ? 0 : parts * sizeof(float) * static_cast<size_t>(d.rows * d.columns);
}

bool is_aligned(const void* data, uint64_t alignment) {
  return reinterpret_cast<uint64_t>(data) % alignment == 0;
}

}  // namespace

// Their linkage is that of the header: C of NVIDIA's, C++ of tests/cuda_on_cpu/shim.
#pragma GCC visibility push(default)

size_t cublasLtGetVersion() { return 130100; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return "success";
  return status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "not supported";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &desc_of(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Desc& to = desc_of(desc);
  const auto set = [&](auto& member) {
    if (bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(to.trans_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(to.trans_b);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(to.scale_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(to.scale_b);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(to.mode_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(to.mode_b);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return set(to.fast_accumulation);
    default:
      report_wrong_call("an attribute of cublasLtMatmulDesc_t that is not implemented");
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  if (rows == 0 || columns == 0 || ld < static_cast<int64_t>(rows))
    return CUBLAS_STATUS_INVALID_VALUE;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &layout_of(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &preference_of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference& preference = preference_of(handle);
  const bool is_workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  if (bytes != (is_workspace ? sizeof(uint64_t) : sizeof(uint32_t)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (is_workspace) {
    preference.workspace = *static_cast<const uint64_t*>(value);
    return CUBLAS_STATUS_SUCCESS;
  }
  const uint32_t number = *static_cast<const uint32_t*>(value);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      preference.reductions = number;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      preference.alignments[0] = number;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      preference.alignments[1] = number;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      preference.alignments[2] = number;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      preference.alignments[3] = number;
      break;
    default:
      report_wrong_call("an attribute of cublasLtMatmulPreference_t that is not implemented");
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t handle, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* returned) {
  *returned = 0;
  if (!fits(desc_of(desc), layout_of(a), layout_of(b), layout_of(c), layout_of(d)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Preference& preference = preference_of(handle);
  const auto& alignments = preference.alignments;
  // As on GPUs whose 16-bit products take two elements at once.
  const uint64_t least = has_8_bits(layout_of(a).type) ? 16 : 4;
  if (layout_of(a).type != CUDA_R_32F && *std::ranges::min_element(alignments) < least)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const uint64_t parts : {1, 2, 3}) {
    const size_t workspace = workspace_bytes_of(parts, layout_of(d));
    const bool may_split = preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (*returned == wanted ||
        static_cast<int64_t>(parts) > inner_size(desc_of(desc), layout_of(a)))
      break;
    if (workspace > preference.workspace || (parts > 1 && !may_split)) continue;
    auto& result = results[(*returned)++];
    result = {};
    const std::array<uint64_t, 8> data{kOurs,         parts,         alignments[0],
                                       alignments[1], alignments[2], alignments[3]};
    std::ranges::copy(data, result.algo.data);
    result.workspaceSize = workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (algorithm->data[kMagic] != kOurs ||
      !fits(desc_of(desc), layout_of(a), layout_of(b), layout_of(c), layout_of(d)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const uint64_t parts = algorithm->data[kParts];
  if (static_cast<int64_t>(parts) > inner_size(desc_of(desc), layout_of(a)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = workspace_bytes_of(parts, layout_of(d));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  cublasLtMatmulHeuristicResult_t checked{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, desc, a_layout, b_layout, c_layout,
                                                        d_layout, algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Product product{.desc = desc_of(desc),
                        .a_layout = layout_of(a_layout),
                        .b_layout = layout_of(b_layout),
                        .c_layout = layout_of(c_layout),
                        .d_layout = layout_of(d_layout),
                        .a = a,
                        .b = b,
                        .c = c,
                        .d = d,
                        .workspace = workspace,
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta),
                        .parts = static_cast<int64_t>(algorithm->data[kParts]),
                        .workspace_bytes = checked.workspaceSize};
  const auto& needs = algorithm->data;
  if (checked.workspaceSize > workspace_bytes || !is_aligned(a, needs[kAlignA]) ||
      !is_aligned(b, needs[kAlignB]) || !is_aligned(d, needs[kAlignD]) ||
      (product.beta != 0 && !is_aligned(c, needs[kAlignC])))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return run(product, stream);
}

#pragma GCC visibility pop
