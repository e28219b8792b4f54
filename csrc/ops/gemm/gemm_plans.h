#pragma once

#include <memory>
#include <vector>

#include "ops/gemm/cublaslt_gemm.h"

namespace fastsft::cuda {

// A product, cuBLASLt's proposed algorithms (best first), and the algorithm in use: the first
// proposal, the tuned algorithm of the key, or a chosen candidate.
struct GemmPlan {
  LtProduct product;
  std::vector<cublasLtMatmulAlgo_t> candidates;  // empty if cuBLASLt has none for this key
  cublasLtMatmulAlgo_t algorithm{};
  bool tuned = false, chosen = false;
};

// Returns the plan for a key, which is made at the first call and kept. Within a process a key
// always runs the same algorithm, until TunedGemms changes. Thread-safe. `operands` give the scales
// with which cuBLASLt is asked; other products need none.
std::shared_ptr<const GemmPlan> gemm_plan(const GemmKey& key, const GemmOperands& operands = {});

// Makes products with this key use candidate `index` from now on.
void choose_gemm_candidate(const GemmKey& key, size_t index);

// Makes products with this key use cuBLASLt's first proposal from now on. Called if cuBLASLt
// refuses to run a tuned algorithm, which can happen even after it passed the check.
void drop_tuned(const GemmKey& key);

// Enqueues the product on the current stream of the key's device.
void run_gemm(const GemmPlan& plan, const GemmKey& key, const cublasLtMatmulAlgo_t& algorithm,
              const GemmOperands& operands);

// Runs the product by its plan, which is measured first while GemmTuning is active. Returns false,
// and does nothing, if cuBLASLt has no algorithm for the key (ops/gemm/gemm_tuning_cuda.cpp).
bool run_planned(const GemmKey& key, const GemmOperands& operands);

// Measures the plan's candidates on the operands and adds the fastest to TunedGemms; keeps the
// first proposal unless another is clearly faster (ops/gemm/gemm_tuning_cuda.cpp).
void tune_gemm(const GemmPlan& plan, const GemmKey& key, const GemmOperands& operands);

}  // namespace fastsft::cuda
