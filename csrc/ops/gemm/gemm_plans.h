#pragma once

#include <memory>
#include <vector>

#include "ops/gemm/cublaslt_gemm.h"

namespace fastsft::cuda {

// A product, the algorithms that cuBLASLt proposes for it, best first by its own estimate, and the
// one that it runs by: the first of them, the tuned one of its key, or one that was chosen.
struct GemmPlan {
  LtProduct product;
  std::vector<cublasLtMatmulAlgo_t> candidates;  // empty: cuBLASLt has none for this key
  cublasLtMatmulAlgo_t algorithm{};
  bool tuned = false, chosen = false;
};

// The plan of a key, made at its first use and kept: the same key always runs the same algorithm
// in one process, until TunedGemms changes. Any thread may call it.
std::shared_ptr<const GemmPlan> gemm_plan(const GemmKey& key);

// From now on products of this key run candidate `index`.
void choose_gemm_candidate(const GemmKey& key, size_t index);

// From now on products of this key run cuBLASLt's first proposal: it has refused the tuned one,
// which it may though it was asked before.
void drop_tuned(const GemmKey& key);

// Enqueues the product on the current stream of the key's device.
void run_gemm(const GemmPlan& plan, const GemmKey& key, const cublasLtMatmulAlgo_t& algorithm,
              const GemmOperands& operands);

// Measures the candidates of `plan` on the operands, and gives TunedGemms the fastest; the first
// one unless another is worth it (ops/gemm/gemm_tuning_cuda.cpp).
void tune_gemm(const GemmPlan& plan, const GemmKey& key, const GemmOperands& operands);

}  // namespace fastsft::cuda
