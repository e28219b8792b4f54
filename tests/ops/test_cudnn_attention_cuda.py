"""cuDNN's attention on a GPU against the formula in float64: fused rows, spare and empty lists."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from fastsft.model.attention_kernel import Heads, cudnn_inputs, dirty_free_memory
from tolerances import assert_close

cuda = pytest.mark.cuda
# (heads, key and value heads, head size)
HEADS = [(4, 4, 128), (8, 2, 64), (6, 1, 96), (4, 2, 256), (4, 4, 80)]
# Grouped heads of Llama 3, Qwen2.5 7B and 3B, Gemma 3 1B.
GROUPED = [(32, 8, 128), (28, 4, 128), (16, 2, 128), (4, 1, 256)]
# Lengths of conversations; what they are divided into, [conversations, longest] of each call; and how many
# empty conversations the calls have.
CASES: dict[str, tuple[list[int], list[int], int]] = {
    "equal": ([256] * 4, [4, 256], 0),
    "spare": ([200] * 13, [16, 256], 3),
    "uneven": ([1000, 900, 800, 700, 600, 550, 520], [8, 1024], 1),
    "many": ([251] * 100, [128, 256], 28),
    "empty before the first and between": ([0, 256, 0, 244, 0], [4, 256], 2),
    "a single token apart": ([256, 255, 250, 2, 1], [4, 256, 1, 128], 0),
    # The scratch memory of the second call is larger than that of the first.
    "a long one apart": ([2000, *[100] * 60], [1, 2048, 64, 128], 4),
    "a third empty": ([300] * 13 + [60] * 21, [16, 512, 32, 128], 14),
}
LENGTHS = {name: lengths for name, (lengths, _, _) in CASES.items()}


@pytest.mark.parametrize(("lengths", "shapes", "empty"), CASES.values(), ids=CASES)
def test_cases_are_what_they_are_for(lengths: list[int], shapes: list[int], empty: int) -> None:
    """No GPU is needed."""
    lists, found = cudnn_inputs(Heads(*GROUPED[0]), lengths, torch.device("cpu"))
    assert found == shapes
    counts, at = [], 0
    for conversations in shapes[::2]:
        counts += lists[at : at + conversations].tolist()
        at += sum(-(-size // 4) * 4 for size in (conversations, *[conversations + 1] * 3))
    assert at == len(lists) and counts.count(0) == empty and sum(counts) == sum(lengths)


@cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("window", [0, 100])
def test_forward_and_backward(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, lengths: list[int], window: int
) -> None:
    check(dtype, (heads, kv_heads, dim), lengths, window)


@cuda
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), GROUPED)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_scratch_that_holds_other_values(heads: int, kv_heads: int, dim: int, lengths: list[int]) -> None:
    """Two calls in a row, each with NaN in the memory that scratch is taken from."""
    for _ in range(2):
        check(torch.bfloat16, (heads, kv_heads, dim), lengths, 0)


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
