#pragma once

#include <memory>
#include <vector>

#include "ops/gemm/lt_product.h"

namespace fastsft::cuda {

// A product with the algorithms that cuBLASLt proposes for it, best first by its own estimate.
struct GemmPlan {
  LtProduct product;
  std::vector<cublasLtMatmulAlgo_t> candidates;  // empty: cuBLASLt has none for this key
  size_t chosen = 0;
};

// The plan of a key, made at its first use and kept: the same key always runs the same algorithm
// in one process, so its bits do not change. Any thread may call it.
std::shared_ptr<const GemmPlan> gemm_plan(const GemmKey& key);

// From now on products of this key run candidate `index`.
void choose_gemm_candidate(const GemmKey& key, size_t index);

// Enqueues the product with the candidate `index` on the current stream of the key's device.
void run_gemm(const GemmPlan& plan, const GemmKey& key, size_t index, const void* a, const void* b,
              const void* addend, void* out, float beta);

}  // namespace fastsft::cuda
