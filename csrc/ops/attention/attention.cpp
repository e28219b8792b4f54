#include "ops/attention/attention.h"

#include <ATen/ops/tensor.h>
#include <torch/library.h>

#include <limits>

#include "data/attention_ranges.h"
#include "ops/schema.h"

namespace fastsft {

void attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
               int64_t num_key_value_heads, double scale, int64_t window, const at::Tensor& out,
               const at::Tensor& lse, int64_t max_seqlen, double softcap,
               const std::optional<at::Tensor>& cudnn_lists, at::IntArrayRef cudnn_shapes) {
  FASTSFT_DISPATCH(attention, qkv, cu_seqlens, num_heads, num_key_value_heads, scale, window, out,
                   lse, max_seqlen, softcap, cudnn_lists, cudnn_shapes);
}

void attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t num_heads,
                        int64_t num_key_value_heads, double scale, int64_t window,
                        const at::Tensor& grad_qkv, int64_t max_seqlen, double softcap,
                        const std::optional<at::Tensor>& cudnn_lists,
                        at::IntArrayRef cudnn_shapes) {
  FASTSFT_DISPATCH(attention_backward, grad_out, qkv, out, lse, cu_seqlens, num_heads,
                   num_key_value_heads, scale, window, grad_qkv, max_seqlen, softcap, cudnn_lists,
                   cudnn_shapes);
}

int64_t prepare_attention(const at::Tensor& like, int64_t num_heads, int64_t num_key_value_heads,
                          int64_t head_dim, double scale, at::IntArrayRef windows,
                          at::IntArrayRef cudnn_shapes) {
  FASTSFT_DISPATCH(prepare_attention, like, num_heads, num_key_value_heads, head_dim, scale,
                   windows, cudnn_shapes);
}

namespace {

void check_heads(const char* op, int64_t num_heads, int64_t num_key_value_heads) {
  TORCH_CHECK_VALUE(
      num_heads > 0 && num_key_value_heads > 0 && num_heads % num_key_value_heads == 0, op, ": ",
      num_heads, " heads are not a multiple of ", num_key_value_heads, " key/value heads");
}

void check_head_dim(const char* op, int64_t head_dim) {
  TORCH_CHECK_VALUE(head_dim > 0, op, ": head_dim is ", head_dim, ", expected 1 or more");
}

void check_cudnn_shapes(const char* op, at::IntArrayRef shapes) {
  TORCH_CHECK_VALUE(shapes.size() % 2 == 0, op, ": cudnn_shapes has ", shapes.size(),
                    " numbers, expected pairs of conversations and longest");
  for (const int64_t number : shapes) {
    TORCH_CHECK_VALUE(number > 0 && number <= std::numeric_limits<int32_t>::max(), op,
                      ": cudnn_shapes has ", number, ", expected numbers from 1 to 2^31 - 1");
  }
}

void check_cudnn(const char* op, const Arg& qkv, const CudnnArgs& cudnn) {
  check_cudnn_shapes(op, cudnn.shapes);
  int64_t entries = 0;
  for (const PaddedShape& shape : padded_shapes(cudnn.shapes)) {
    entries = list_places(shape, entries).end;
  }
  if (!cudnn.lists) {
    TORCH_CHECK_VALUE(entries == 0, op, ": cudnn_shapes without cudnn_lists, expected ", entries,
                      " entries, as divide_attention returns them");
    return;
  }
  const Arg lists{"cudnn_lists", *cudnn.lists};
  check_tensors(op, {qkv, lists});
  check_dtype(op, lists, at::kInt);
  check_shape(op, lists, {entries});
}

}  // namespace

std::vector<PaddedShape> padded_shapes(at::IntArrayRef cudnn_shapes) {
  std::vector<PaddedShape> shapes;
  for (size_t i = 0; i + 1 < cudnn_shapes.size(); i += 2) {
    shapes.push_back({cudnn_shapes[i], cudnn_shapes[i + 1]});
  }
  return shapes;
}

void check_attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
                     int64_t num_key_value_heads, double scale, int64_t window,
                     const at::Tensor& out, const at::Tensor& lse, int64_t max_seqlen,
                     double softcap, const CudnnArgs& cudnn) {
  constexpr const char* kOp = "attention";
  check_tensors(kOp, {{"qkv", qkv}, {"cu_seqlens", cu_seqlens}, {"out", out}, {"lse", lse}});
  check_compute_dtype(kOp, {"qkv", qkv});
  check_dtype(kOp, {"out", out}, qkv.scalar_type());
  check_dtype(kOp, {"lse", lse}, at::kFloat);
  check_dtype(kOp, {"cu_seqlens", cu_seqlens}, at::kInt);
  check_heads(kOp, num_heads, num_key_value_heads);
  TORCH_CHECK_VALUE(window >= 0, kOp, ": window is ", window,
                    ", expected the number of tokens seen, or 0 for all");
  TORCH_CHECK_VALUE(max_seqlen >= 0, kOp, ": max_seqlen is ", max_seqlen,
                    ", expected the longest conversation, or 0 when it is not known");
  TORCH_CHECK_VALUE(softcap >= 0, kOp, ": softcap is ", softcap,
                    ", expected the bound of the scores, or 0 for none");
  const int64_t all = num_heads + 2 * num_key_value_heads;
  TORCH_CHECK_VALUE(qkv.dim() == 2 && qkv.size(1) % all == 0, kOp, ": a row of qkv has shape ",
                    qkv.sizes(), ", which ", all, " heads do not divide");
  check_shape(kOp, {"out", out}, {qkv.size(0), qkv.size(1) / all * num_heads});
  check_shape(kOp, {"lse", lse}, {num_heads, qkv.size(0)});
  TORCH_CHECK_VALUE(qkv.is_contiguous() && out.is_contiguous() && lse.is_contiguous(), kOp,
                    ": qkv, out and lse must be contiguous");
  TORCH_CHECK_VALUE(cu_seqlens.dim() == 1 && cu_seqlens.size(0) >= 1 && cu_seqlens.is_contiguous(),
                    kOp, ": cu_seqlens must be a flat tensor of one entry or more");
  check_cudnn(kOp, {"qkv", qkv}, cudnn);
}

void check_prepare_attention(const at::Tensor& like, int64_t num_heads, int64_t num_key_value_heads,
                             int64_t head_dim, at::IntArrayRef cudnn_shapes) {
  constexpr const char* kOp = "prepare_attention";
  check_compute_dtype(kOp, {"like", like});
  check_heads(kOp, num_heads, num_key_value_heads);
  check_head_dim(kOp, head_dim);
  check_cudnn_shapes(kOp, cudnn_shapes);
}

void check_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, int64_t num_heads,
                              int64_t num_key_value_heads, double scale, int64_t window,
                              const at::Tensor& grad_qkv, int64_t max_seqlen, double softcap,
                              const CudnnArgs& cudnn) {
  constexpr const char* kOp = "attention_backward";
  check_attention(qkv, cu_seqlens, num_heads, num_key_value_heads, scale, window, out, lse,
                  max_seqlen, softcap, cudnn);
  check_tensors(kOp, {{"qkv", qkv}, {"grad_out", grad_out}, {"grad_qkv", grad_qkv}});
  check_shape(kOp, {"grad_out", grad_out}, out.sizes());
  check_dtype(kOp, {"grad_out", grad_out}, qkv.scalar_type());
  check_shape(kOp, {"grad_qkv", grad_qkv}, qkv.sizes());
  check_dtype(kOp, {"grad_qkv", grad_qkv}, qkv.scalar_type());
  TORCH_CHECK_VALUE(grad_out.is_contiguous() && grad_qkv.is_contiguous(), kOp,
                    ": grad_out and grad_qkv must be contiguous");
}

namespace {

// Returns cudnn_lists on the CPU and cudnn_shapes of conversations with these lengths.
std::tuple<at::Tensor, std::vector<int64_t>> divide_attention(at::IntArrayRef lengths,
                                                              int64_t num_heads,
                                                              int64_t num_key_value_heads,
                                                              int64_t head_dim) {
  constexpr const char* kOp = "divide_attention";
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max(), kMostHeads = int64_t{1} << 20;
  check_heads(kOp, num_heads, num_key_value_heads);
  check_head_dim(kOp, head_dim);
  TORCH_CHECK_VALUE(num_heads <= kMostHeads && head_dim <= kMostHeads, kOp, ": ", num_heads,
                    " heads of ", head_dim, ", expected at most ", kMostHeads, " of each");
  std::vector<int32_t> boundaries = {0};
  for (const int64_t length : lengths) {
    TORCH_CHECK_VALUE(length >= 0 && length <= kMost - boundaries.back(), kOp,
                      ": a conversation of ", length, " tokens after ", boundaries.back(),
                      ", expected 0 or more, and at most 2^31 - 1 in all");
    boundaries.push_back(boundaries.back() + static_cast<int32_t>(length));
  }
  const HeadShape heads{num_heads, num_key_value_heads, head_dim};
  const CudnnInputs inputs = cudnn_inputs(boundaries, heads);
  return {at::tensor(inputs.lists, at::kInt), inputs.shapes};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "attention(Tensor qkv, Tensor cu_seqlens, int num_heads, int num_key_value_heads, float "
      "scale, int window, Tensor(a!) out, Tensor(b!) lse, int max_seqlen=0, float softcap=0.0, "
      "Tensor? cudnn_lists=None, int[] cudnn_shapes=[]) -> ()");
  m.def(
      "attention_backward(Tensor grad_out, Tensor qkv, Tensor out, Tensor lse, Tensor cu_seqlens, "
      "int num_heads, int num_key_value_heads, float scale, int window, Tensor(a!) grad_qkv, int "
      "max_seqlen=0, float softcap=0.0, Tensor? cudnn_lists=None, int[] cudnn_shapes=[]) -> ()");
  m.def(
      "prepare_attention(Tensor like, int num_heads, int num_key_value_heads, int head_dim, float "
      "scale, int[] windows, int[] cudnn_shapes) -> int");
  m.def(
      "divide_attention(int[] lengths, int num_heads, int num_key_value_heads, int head_dim) -> "
      "(Tensor, int[])",
      &divide_attention);
}

}  // namespace fastsft
