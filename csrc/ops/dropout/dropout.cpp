#include "ops/dropout/dropout.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {

void dropout(const at::Tensor& x, const at::Tensor& keys, double p, int64_t seed, int64_t stream,
             const at::Tensor& out, double beta) {
  FASTSFT_DISPATCH(dropout, x, keys, p, seed, stream, out, beta);
}

void check_dropout(const at::Tensor& x, const at::Tensor& keys, double p, int64_t, int64_t stream,
                   const at::Tensor& out, double) {
  constexpr const char* kOp = "dropout";
  check_tensors(kOp, {{"x", x}, {"keys", keys}, {"out", out}});
  check_compute_dtype(kOp, {"x", x});
  TORCH_CHECK_VALUE(x.dim() == 2, kOp, ": x has ", x.dim(),
                    " dimensions, expected [tokens, width]");
  check_shape(kOp, {"keys", keys}, {x.size(0)});
  check_dtype(kOp, {"keys", keys}, at::kInt);
  check_shape(kOp, {"out", out}, x.sizes());
  check_dtype(kOp, {"out", out}, x.scalar_type());
  TORCH_CHECK_VALUE(x.is_contiguous() && out.is_contiguous(), kOp,
                    ": x and out must be contiguous");
  TORCH_CHECK_VALUE(p >= 0 && p < 1, kOp, ": p is ", p, ", expected [0, 1)");
  TORCH_CHECK_VALUE(stream >= 0 && stream <= 0xFFFFFFFF, kOp, ": stream is ", stream,
                    ", expected 32 bits");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "dropout(Tensor x, Tensor keys, float p, int seed, int stream, Tensor(a!) out, float beta) "
      "-> ()");
}

}  // namespace fastsft
