"""Variable-length causal attention with grouped heads against plain softmax under autograd."""

from __future__ import annotations

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from tolerances import assert_close

HEADS = [(4, 4, 8), (4, 2, 8), (6, 1, 40), (2, 2, 64)]
BOUNDARIES = [[0, 1], [0, 5, 5, 30, 31], [0, 47, 95, 144], [0, 200]]


def plain(
    qkv: torch.Tensor, cu: list[int], heads: int, kv_heads: int, dim: int, window: int = 0
) -> torch.Tensor:
    q, k, v = qkv.view(len(qkv), heads + 2 * kv_heads, dim).split([heads, kv_heads, kv_heads], dim=1)
    return reference.attention(q, k, v, cu, window=window or None).flatten(1)


def run(
    qkv: torch.Tensor,
    grad_out: torch.Tensor,
    cu: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.empty_like(grad_out), torch.empty(heads, len(qkv))
    boundaries, grad = torch.tensor(cu, dtype=torch.int32), torch.full_like(qkv, torch.nan)
    torch.ops.fastsft.attention(qkv, boundaries, heads, kv_heads, dim**-0.5, window, out, lse)
    torch.ops.fastsft.attention_backward(
        grad_out, qkv, out, lse, boundaries, heads, kv_heads, dim**-0.5, window, grad
    )
    return out, grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads,kv_heads,dim", HEADS)
@pytest.mark.parametrize("cu", BOUNDARIES, ids=str)
def test_forward_and_backward(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, cu: list[int]) -> None:
    tokens = cu[-1]
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    grad_out = torch.randn(tokens, heads * dim).to(dtype)
    exact = qkv.double().requires_grad_()
    expected = plain(exact, cu, heads, kv_heads, dim)
    expected.backward(grad_out.double())
    out, grad = run(qkv, grad_out, cu, heads, kv_heads, dim)
    assert_close(out, expected, name="out")
    assert_close(grad, exact.grad, name="grad", kind="op" if dtype == torch.float32 else "model")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [1, 2, 16, 17, 47, 130, 500])
@pytest.mark.parametrize("cu", [[0, 5, 5, 55, 56], [0, 200]], ids=str)
def test_sliding_window(dtype: torch.dtype, window: int, cu: list[int]) -> None:
    qkv, grad_out = torch.randn(cu[-1], 8 * 10).to(dtype), torch.randn(cu[-1], 4 * 10).to(dtype)
    exact = qkv.double().requires_grad_()
    expected = plain(exact, cu, 4, 2, 10, window)
    expected.backward(grad_out.double())
    out, grad = run(qkv, grad_out, cu, 4, 2, 10, window)
    assert_close(out, expected, name="out")
    assert_close(grad, exact.grad, name="grad", kind="op" if dtype == torch.float32 else "model")


def test_a_window_as_long_as_the_conversation_changes_no_bit() -> None:
    qkv, grad_out, cu = torch.randn(150, 24), torch.randn(150, 8), [0, 90, 150]
    plainly, windowed = run(qkv, grad_out, cu, 1, 1, 8), run(qkv, grad_out, cu, 1, 1, 8, window=90)
    assert all(torch.equal(a, b) for a, b in zip(plainly, windowed, strict=True))


def test_what_left_the_window_does_not_matter() -> None:
    qkv, ones = torch.randn(60, 24), torch.ones(60, 8)
    before, _ = run(qkv, ones, [0, 60], 1, 1, 8, window=20)
    qkv[:30] = torch.randn(30, 24)
    after, _ = run(qkv, ones, [0, 60], 1, 1, 8, window=20)
    assert torch.equal(before[49:], after[49:]) and not torch.equal(before[48], after[48])


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window is -1, expected the number of tokens seen, or 0 for all"):
        run(torch.ones(4, 24), torch.ones(4, 8), [0, 4], 1, 1, 8, window=-1)


def test_no_token() -> None:
    out, grad = run(torch.empty(0, 24), torch.empty(0, 8), [0], 1, 1, 8)
    assert out.shape == (0, 8) and grad.shape == (0, 24)


def test_large_scores_do_not_overflow() -> None:
    qkv = 60 * torch.randn(40, 3 * 16)
    exact = qkv.double().requires_grad_()
    expected = plain(exact, [0, 40], 1, 1, 16)
    expected.sum().backward()
    out, grad = run(qkv, torch.ones(40, 16), [0, 40], 1, 1, 16)
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-3)
    assert grad.isfinite().all()


def test_nothing_crosses_a_boundary() -> None:
    qkv, cu = torch.randn(20, 3 * 8), [0, 12, 20]
    before, _ = run(qkv, torch.ones(20, 8), cu, 1, 1, 8)
    qkv[:12] = torch.randn(12, 24)
    after, _ = run(qkv, torch.ones(20, 8), cu, 1, 1, 8)
    assert torch.equal(before[12:], after[12:])


@pytest.mark.parametrize(("heads", "kv_heads"), [(-4, 2), (3, 2), (2, 0), (0, 0)])
def test_impossible_numbers_of_heads_are_refused(heads: int, kv_heads: int) -> None:
    x, cu = torch.ones(4, 24), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="are not a multiple of"):
        torch.ops.fastsft.attention(x, cu, heads, kv_heads, 1.0, 0, torch.ones(4, 8), torch.ones(1, 4))


LISTS = torch.zeros(16, dtype=torch.int32)  # of one conversation: a length and thrice two offsets, in fours


@pytest.mark.parametrize(
    ("lists", "shapes", "says"),
    [
        (None, [1, 128], "cudnn_shapes without cudnn_lists, expected 16 entries"),
        (LISTS, [1, 128, 3], "cudnn_shapes has 3 numbers, expected pairs"),
        (LISTS, [0, 128], "cudnn_shapes has 0, expected numbers from 1"),
        (LISTS, [1, -128], "cudnn_shapes has -128, expected numbers from 1"),
        (LISTS[:12], [1, 128], r"cudnn_lists has shape \[12\], expected \[16\]"),
        (LISTS, [1, 128, 1, 128], r"cudnn_lists has shape \[16\], expected \[32\]"),
        (LISTS, [], r"cudnn_lists has shape \[16\], expected \[0\]"),
        (LISTS.long(), [1, 128], "cudnn_lists is Long, expected Int"),
        (LISTS.repeat(2)[::2], [1, 128], "cudnn_lists must be contiguous"),
    ],
    ids=str,
)
def test_lists_for_cudnn_are_checked_on_every_device(
    lists: torch.Tensor | None, shapes: list[int], says: str
) -> None:
    x, out, lse = torch.ones(4, 24), torch.ones(4, 8), torch.ones(1, 4)
    shape, cu = (1, 1, 1.0, 0), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match=says):
        torch.ops.fastsft.attention(x, cu, *shape, out, lse, 4, 0.0, lists, shapes)
    with pytest.raises(ValueError, match=says):
        torch.ops.fastsft.attention_backward(out, x, out, lse, cu, *shape, x.clone(), 4, 0.0, lists, shapes)


@pytest.mark.parametrize("cu", [[1, 20], [0, 19], [0, 15, 10, 20]], ids=str)
def test_boundaries_must_cover_the_tokens(cu: list[int]) -> None:
    with pytest.raises(ValueError, match="cu_seqlens must go from 0 to 20"):
        run(torch.ones(20, 24), torch.ones(20, 8), cu, 1, 1, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cap", [0.5, 3.0, 50.0])
@pytest.mark.parametrize(("cu", "window"), [([0, 5, 5, 55, 56], 0), ([0, 200], 17)], ids=str)
def test_soft_cap(dtype: torch.dtype, cap: float, cu: list[int], window: int) -> None:
    qkv, grad_out = 2 * torch.randn(cu[-1], 8 * 10), torch.randn(cu[-1], 4 * 10).to(dtype)
    qkv = qkv.to(dtype)
    exact = qkv.double().requires_grad_()
    q, k, v = exact.view(len(qkv), 8, 10).split([4, 2, 2], dim=1)
    expected = reference.attention(q, k, v, cu, scale=0.7, window=window or None, cap=cap).flatten(1)
    expected.backward(grad_out.double())
    out, lse, grad = torch.empty_like(grad_out), torch.empty(4, len(qkv)), torch.full_like(qkv, torch.nan)
    boundaries, shape = torch.tensor(cu, dtype=torch.int32), (4, 2, 0.7, window)
    torch.ops.fastsft.attention(qkv, boundaries, *shape, out, lse, 0, cap)
    torch.ops.fastsft.attention_backward(grad_out, qkv, out, lse, boundaries, *shape, grad, 0, cap)
    assert_close(out, expected, name="out")
    assert_close(grad, exact.grad, name="grad", kind="op" if dtype == torch.float32 else "model")


def test_a_negative_cap_is_refused() -> None:
    out, lse, boundaries = torch.empty(4, 8), torch.empty(1, 4), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="softcap is -1, expected the bound of the scores, or 0 for none"):
        torch.ops.fastsft.attention(torch.ones(4, 24), boundaries, 1, 1, 1.0, 0, out, lse, 0, -1.0)
