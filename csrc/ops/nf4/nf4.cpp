#include "ops/nf4/nf4.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "ops/dynamic_levels.h"
#include "ops/schema.h"

namespace fastsft {
namespace {

// Levels are quantiles of the normal distribution, scaled to [-1, 1] (QLoRA, appendix E).
constexpr std::array<float, kNf4Levels> kLevels = {-1.0f,
                                                   -0.6961928009986877f,
                                                   -0.5250730514526367f,
                                                   -0.39491748809814453f,
                                                   -0.28444138169288635f,
                                                   -0.18477343022823334f,
                                                   -0.09105003625154495f,
                                                   0.0f,
                                                   0.07958029955625534f,
                                                   0.16093020141124725f,
                                                   0.24611230194568634f,
                                                   0.33791524171829224f,
                                                   0.44070982933044434f,
                                                   0.5626170039176941f,
                                                   0.7229568362236023f,
                                                   1.0f};

// Divides each row of `values` [rows, columns] by its largest magnitude and returns the indices of
// the nearest levels. The magnitudes are written to `largest` [rows].
at::Tensor nearest(const at::Tensor& values, const at::Tensor& levels, const at::Tensor& largest) {
  largest.copy_(values.abs().amax(-1));
  const at::Tensor inverse = (1.0 / largest.clamp_min(1e-38)).unsqueeze(-1);
  const at::Tensor bounds = (levels.slice(0, 0, -1) + levels.slice(0, 1)) / 2;
  return at::bucketize((values * inverse).clamp(-1, 1), bounds, /*out_int32=*/true).to(at::kByte);
}

}  // namespace

int64_t nf4_scale_numel(int64_t numel) {
  const int64_t blocks = numel / kNf4Block;
  return 1 + (blocks + kNf4ScaleGroup - 1) / kNf4ScaleGroup;
}

at::Tensor nf4_levels(at::Device device) {
  const at::Tensor levels = at::empty({kNf4Levels}, at::kFloat);
  std::copy(kLevels.begin(), kLevels.end(), levels.mutable_data_ptr<float>());
  return at::cat({levels, dynamic_levels(/*has_sign=*/true)}).to(device);
}

void nf4_quantize(const at::Tensor& values, const at::Tensor& packed, const at::Tensor& scales) {
  check_nf4_quantize(values, packed, scales);
  const int64_t blocks = packed.size(0);
  const at::Tensor all_levels = nf4_levels(values.device());
  const at::Tensor levels = all_levels.slice(0, 0, kNf4Levels);
  const at::Tensor block_scales = at::empty({blocks}, scales.options());
  constexpr int64_t kPiece = int64_t{1} << 16;  // blocks converted to float32 at a time
  for (int64_t begin = 0; begin < blocks; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, blocks);
    const at::Tensor piece = values.slice(0, begin * kNf4Block, end * kNf4Block)
                                 .to(at::kFloat)
                                 .view({end - begin, kNf4Block});
    const at::Tensor codes = nearest(piece, levels, block_scales.slice(0, begin, end));
    packed.slice(0, begin, end)
        .slice(1, 0, kNf4Block / 2)
        .copy_(codes.slice(1, 0, at::nullopt, 2) * kNf4Levels + codes.slice(1, 1, at::nullopt, 2));
  }
  scales[0].copy_(block_scales.mean());
  const int64_t groups = scales.numel() - 1;
  const at::Tensor grouped = at::zeros({groups * kNf4ScaleGroup}, scales.options());
  grouped.slice(0, 0, blocks).copy_(block_scales - scales[0]);
  const at::Tensor codes = nearest(grouped.view({groups, kNf4ScaleGroup}),
                                   all_levels.slice(0, kNf4Levels), scales.slice(0, 1));
  packed.select(1, kNf4Block / 2).copy_(codes.view({-1}).slice(0, 0, blocks));
}

void nf4_dequantize(const at::Tensor& packed, const at::Tensor& scales, const at::Tensor& levels,
                    const at::Tensor& out) {
  FASTSFT_DISPATCH(nf4_dequantize, packed, scales, levels, out);
}

void check_nf4_quantize(const at::Tensor& values, const at::Tensor& packed,
                        const at::Tensor& scales) {
  constexpr const char* kOp = "nf4_quantize";
  check_tensors(kOp, {{"values", values}, {"packed", packed}, {"scales", scales}});
  check_compute_dtype(kOp, {"values", values});
  const int64_t blocks = values.numel() / kNf4Block;
  TORCH_CHECK_VALUE(values.dim() == 1 && values.numel() == blocks * kNf4Block && blocks > 0, kOp,
                    ": values has shape ", values.sizes(), ", expected [numel], a multiple of ",
                    kNf4Block);
  check_shape(kOp, {"packed", packed}, {blocks, kNf4BlockBytes});
  check_shape(kOp, {"scales", scales}, {nf4_scale_numel(values.numel())});
  check_dtype(kOp, {"packed", packed}, at::kByte);
  check_dtype(kOp, {"scales", scales}, at::kFloat);
}

void check_nf4_dequantize(const at::Tensor& packed, const at::Tensor& scales,
                          const at::Tensor& levels, const at::Tensor& out) {
  constexpr const char* kOp = "nf4_dequantize";
  check_tensors(kOp, {{"packed", packed}, {"scales", scales}, {"levels", levels}, {"out", out}});
  check_dtype(kOp, {"packed", packed}, at::kByte);
  check_dtype(kOp, {"scales", scales}, at::kFloat);
  check_dtype(kOp, {"levels", levels}, at::kFloat);
  check_compute_dtype(kOp, {"out", out});
  TORCH_CHECK_VALUE(out.dim() == 1 && out.numel() % kNf4Block == 0, kOp, ": out has shape ",
                    out.sizes(), ", expected [numel], a multiple of ", kNf4Block);
  TORCH_CHECK_VALUE(packed.is_contiguous(), kOp, ": packed is not contiguous");
  check_shape(kOp, {"packed", packed}, {out.numel() / kNf4Block, kNf4BlockBytes});
  check_shape(kOp, {"scales", scales}, {nf4_scale_numel(out.numel())});
  check_shape(kOp, {"levels", levels}, {kNf4Levels + kNf4ScaleLevels});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("nf4_quantize(Tensor values, Tensor(a!) packed, Tensor(b!) scales) -> ()");
  m.def("nf4_dequantize(Tensor packed, Tensor scales, Tensor levels, Tensor(a!) out) -> ()");
}

TORCH_LIBRARY_IMPL(fastsft, CompositeExplicitAutograd, m) { m.impl("nf4_quantize", &nf4_quantize); }

}  // namespace fastsft
