#include <torch/library.h>

#include "ops/attention/attention_choice.h"
#include "ops/cuda/access.h"
#include "ops/linear_cross_entropy/logits_workspace.h"

// The host-side decisions of the CUDA kernels, as torch.ops.fastsft.plan_*. They are plain
// arithmetic, so tests on machines without a GPU can check them.
namespace fastsft {
namespace {

// Returns threads per row, rows per block, and accesses per thread (0 selects the wide kernel).
std::vector<int64_t> plan_row(int64_t columns, int64_t width) {
  const cuda::RowPlan plan = cuda::plan_row(columns, static_cast<int>(width));
  return {plan.threads, plan.rows_per_block, plan.packs};
}

int64_t plan_access(int64_t columns, int64_t element_size, int64_t alignment) {
  return cuda::access_width(columns, static_cast<int>(element_size),
                            static_cast<uint64_t>(alignment));
}

// Returns the rows per chunk of logits, and the stride between rows in elements.
std::vector<int64_t> plan_logits(int64_t tokens, int64_t vocab, int64_t itemsize) {
  const cuda::LogitsPlan plan = cuda::plan_logits(tokens, vocab, itemsize);
  return {plan.rows, plan.stride};
}

bool plan_flash(bool narrow, int64_t head_dim, int64_t alignment, int64_t capability) {
  const auto dtype = narrow ? cuda::Dtype::kBFloat16 : cuda::Dtype::kFloat;
  return cuda::choose_attention(dtype, head_dim, static_cast<uint64_t>(alignment),
                                static_cast<int>(capability)) == cuda::AttentionKernel::kFlash;
}

// Returns the padded head size and the tokens per tile.
std::vector<int64_t> plan_tiles(int64_t head_dim) {
  const int padded = cuda::tiled_head_dim(head_dim);
  return {padded, cuda::tiled_rows(padded)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("plan_row(int columns, int width) -> int[]", &plan_row);
  m.def("plan_access(int columns, int element_size, int alignment) -> int", &plan_access);
  m.def("plan_logits(int tokens, int vocab, int itemsize) -> int[]", &plan_logits);
  m.def("plan_flash(bool narrow, int head_dim, int alignment, int capability) -> bool",
        &plan_flash);
  m.def("plan_tiles(int head_dim) -> int[]", &plan_tiles);
}

}  // namespace fastsft
