"""cuDNN's attention on a GPU against the formula in float64: fused rows, spare and empty lists."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from tolerances import assert_close

pytestmark = pytest.mark.cuda

# (heads, key and value heads, head size)
HEADS = [(4, 4, 128), (8, 2, 64), (6, 1, 96), (4, 2, 256), (4, 4, 80)]
# Equal lengths; a shape with spare conversations (9 to 16) that are empty; few long ones among many short.
BOUNDARIES = {
    "equal": list(range(0, 1025, 256)),
    "spare": list(range(0, 1801, 200)),
    "uneven": [0, 900, *range(907, 1100, 7)],
    "empty": [0, 0, 300, 300, 517, 517],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("window", [0, 100])
def test_forward_and_backward(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, boundaries: str, window: int
) -> None:
    cu = BOUNDARIES[boundaries]
    tokens, longest = cu[-1], max(end - begin for begin, end in pairwise(cu))
    torch.manual_seed(0)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device="cuda").to(dtype)
    grad_out = torch.randn(tokens, heads * dim, device="cuda").to(dtype)
    exact = qkv.double().requires_grad_()
    q, k, v = exact.view(tokens, -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    expected = reference.attention(q, k, v, cu, window=window or None).flatten(1)
    expected.backward(grad_out.double())

    ends = torch.tensor(cu, dtype=torch.int32, device="cuda")
    out, grad = torch.full_like(grad_out, torch.nan), torch.full_like(qkv, torch.nan)
    lse = torch.full((heads, tokens), torch.nan, device="cuda")
    shape = (heads, kv_heads, dim**-0.5, window)
    torch.ops.fastsft.attention(qkv, ends, *shape, out, lse, longest, 0.0, True)
    assert_close(out, expected, name="out")
    torch.ops.fastsft.attention_backward(grad_out, qkv, out, lse, ends, *shape, grad, longest, 0.0, True)
    assert exact.grad is not None
    assert_close(grad, exact.grad, kind="model", name="grad")


def test_it_is_cudnn() -> None:
    """The rows of a usual micro-batch do not fall back to flash, whose lse has another layout."""
    heads, tokens = 4, 1024
    qkv = torch.randn(tokens, 3 * heads * 128, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(0, tokens + 1, 256, dtype=torch.int32, device="cuda")
    out = torch.empty(tokens, heads * 128, device="cuda", dtype=torch.bfloat16)
    lse = [torch.empty(heads, tokens, device="cuda") for _ in range(2)]
    for use_cudnn in (False, True):
        torch.ops.fastsft.attention(qkv, ends, heads, heads, 0.1, 0, out, lse[use_cudnn], 256, 0.0, use_cudnn)
    assert_close(lse[1].view(tokens, heads).t(), lse[0], name="lse")
