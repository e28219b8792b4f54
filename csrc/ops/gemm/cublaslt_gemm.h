#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "ops/gemm/gemm_key.h"

namespace fastsft::cuda {

struct LtDelete {
  void operator()(cublasLtMatmulDesc_t desc) const { cublasLtMatmulDescDestroy(desc); }
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
template <typename T>
using LtHandle = std::unique_ptr<std::remove_pointer_t<T>, LtDelete>;

// Pointers to a product's matrices; `addend` may equal `out`.
struct GemmOperands {
  const void* a;
  const void* b;
  const void* addend;
  void* out;
  float beta;
  // Factors of a's and b's rows; null without scales.
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
};

// A product in cuBLASLt's terms. cuBLASLt's matrices are column-major, so a row-major out = op(a)
// op(b) is computed as out^T = op(b)^T op(a)^T, and b is the first operand.
class LtProduct {
 public:
  explicit LtProduct(const GemmKey& key);

  // Sets the operands' scales. Heuristics need them, too.
  void set_scales(const GemmOperands& operands) const;

  // Returns the algorithms that cuBLASLt proposes, best first; empty if it has none. They are
  // deterministic: none adds with atomics.
  std::vector<cublasLtMatmulAlgo_t> propose(cublasLtHandle_t handle, size_t workspace_bytes,
                                            int count) const;

  // Returns true if the product can use an algorithm that was proposed for other sizes.
  bool takes(cublasLtHandle_t handle, size_t workspace_bytes,
             const cublasLtMatmulAlgo_t& algorithm) const;

  // Enqueues the product on `stream`.
  void run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
           const GemmOperands& operands, void* workspace, size_t workspace_bytes,
           cudaStream_t stream) const;

 private:
  GemmKey key_;
  LtHandle<cublasLtMatmulDesc_t> desc_;
  LtHandle<cublasLtMatrixLayout_t> a_, b_, addend_, out_;
};

}  // namespace fastsft::cuda
