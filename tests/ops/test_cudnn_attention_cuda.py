"""cuDNN's attention on a GPU against the formula in float64: fused rows, spare and empty lists."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from fastsft.model.attention_kernel import Heads, cudnn_inputs, dirty_free_memory
from tolerances import assert_close

pytestmark = pytest.mark.cuda

# (heads, key and value heads, head size)
HEADS = [(4, 4, 128), (8, 2, 64), (6, 1, 96), (4, 2, 256), (4, 4, 80)]
# Grouped heads of Llama 3, Qwen2.5 7B and 3B, Gemma 3 1B.
GROUPED = [(32, 8, 128), (28, 4, 128), (16, 2, 128), (4, 1, 256)]
# Lengths of conversations. Some cases are a plan of more conversations than there are, the rest empty.
LENGTHS = {
    "equal": [256] * 4,
    "spare": [200] * 9,
    "uneven": [1000, *[200] * 7],
    "one": [250, 1, 256, 2, 255],
    "empty": [0, 256, 0, 244, 0],
    "many": [251] * 70,
}
# Two calls: the long one with cuDNN's scratch for all would take too much of it.
TWO_RANGES = [2000, *[100] * 60]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("window", [0, 100])
def test_forward_and_backward(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, lengths: list[int], window: int
) -> None:
    check(dtype, (heads, kv_heads, dim), lengths, window)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), GROUPED)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_scratch_that_holds_other_values(heads: int, kv_heads: int, dim: int, lengths: list[int]) -> None:
    """Two calls in a row, each with NaN in the memory that scratch is taken from."""
    for _ in range(2):
        check(torch.bfloat16, (heads, kv_heads, dim), lengths, 0)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 128), (4, 4, 80), (8, 2, 64)])
@pytest.mark.parametrize("window", [0, 100])
def test_two_ranges(heads: int, kv_heads: int, dim: int, window: int) -> None:
    check(torch.bfloat16, (heads, kv_heads, dim), TWO_RANGES, window)


def check(dtype: torch.dtype, sizes: tuple[int, int, int], lengths: list[int], window: int) -> None:
    """Results of both passes; and it is cuDNN's, whose lse is [tokens, heads]."""
    (heads, kv_heads, dim), cu = sizes, [0, *accumulate(lengths)]
    tokens, longest = cu[-1], max(lengths)
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
    cudnn = cudnn_inputs(Heads(*sizes), lengths, qkv.device)
    dirty_free_memory(qkv.device)
    torch.ops.fastsft.attention(qkv, ends, *shape, out, lse, longest, 0.0, *cudnn)
    assert_close(out, expected, name="out")
    by_flash = torch.empty_like(lse)
    torch.ops.fastsft.attention(qkv, ends, *shape, torch.empty_like(out), by_flash, longest)
    assert_close(lse.view(tokens, heads).t(), by_flash, name="lse")
    dirty_free_memory(qkv.device)
    torch.ops.fastsft.attention_backward(grad_out, qkv, out, lse, ends, *shape, grad, longest, 0.0, *cudnn)
    assert exact.grad is not None
    assert_close(grad, exact.grad, kind="model", name="grad")
