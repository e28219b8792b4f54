"""Attention on the GPU, both kernels: flash (bfloat16) and our tiles (float32, odd head sizes)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import reference
from device_ops import OpDevice, bits_equal
from tolerances import assert_close

DTYPES = [torch.float32, torch.bfloat16]
# (heads, key/value heads, head size): sizes that flash takes (8, 64, 128) and that it does not (10, 100).
HEADS = [(4, 4, 8), (4, 2, 10), (8, 2, 64), (6, 1, 100), (4, 4, 128), (2, 1, 256)]
BOUNDARIES = [[0, 1], [0, 5, 5, 30, 31], [0, 47, 95, 144, 300], [0, 517]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads,kv_heads,dim", HEADS)
@pytest.mark.parametrize("cu", BOUNDARIES, ids=str)
@pytest.mark.parametrize("window", [0, 1, 40])
def test_forward_and_backward(
    device: OpDevice, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, cu: list[int], window: int
) -> None:
    tokens, longest = cu[-1], max(end - begin for begin, end in pairwise(cu))
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    grad_out, boundaries = torch.randn(tokens, heads * dim).to(dtype), torch.tensor(cu, dtype=torch.int32)
    exact = qkv.double().requires_grad_()
    q, k, v = exact.view(tokens, -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    expected = reference.attention(q, k, v, cu, window=window or None).flatten(1)
    expected.backward(grad_out.double())
    shape = (heads, kv_heads, dim**-0.5, window)
    made = device.agree(
        "attention", qkv, boundaries, *shape, torch.zeros_like(grad_out), torch.zeros(heads, tokens), longest
    )
    assert_close(made[6], expected, name="out")
    assert exact.grad is not None
    torch.use_deterministic_algorithms(True)
    try:
        made = device.agree(
            "attention_backward", grad_out, qkv, made[6], made[7], boundaries, *shape,
            torch.full_like(qkv, torch.nan), longest, kind="model",
        )  # fmt: skip
    finally:
        torch.use_deterministic_algorithms(False)
    assert_close(made[9], exact.grad, name="grad", kind="op" if dtype == torch.float32 else "model")


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unknown_longest_conversation_changes_nothing(device: OpDevice, dtype: torch.dtype) -> None:
    qkv = torch.randn(90, 3 * 64).to(device.place, dtype)
    boundaries = torch.tensor([0, 33, 90], dtype=torch.int32, device=device.place)
    results = []
    for longest in (0, 57, 90):
        out, lse = (
            torch.zeros(90, 64, device=device.place, dtype=dtype),
            torch.zeros(1, 90, device=device.place),
        )
        device.ops.attention(qkv, boundaries, 1, 1, 0.125, 0, out, lse, longest)
        results.append(out)
    assert bits_equal(results[0], results[1]) and bits_equal(results[0], results[2])


def test_no_token(device: OpDevice) -> None:
    empty = torch.empty(0, 24)
    device.agree(
        "attention",
        empty,
        torch.zeros(1, dtype=torch.int32),
        1,
        1,
        1.0,
        0,
        torch.empty(0, 8),
        torch.empty(1, 0),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_do_not_overflow(device: OpDevice, dtype: torch.dtype) -> None:
    qkv = (60 * torch.randn(70, 3 * 64)).to(dtype)
    shape = (1, 1, 0.125, 0)
    cu = torch.tensor([0, 70], dtype=torch.int32)
    made = device.agree(
        "attention", qkv, cu, *shape, torch.zeros(70, 64).to(dtype), torch.zeros(1, 70), 70, kind="model"
    )
    assert made[6].isfinite().all() and made[7].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "cap"), [(0, 50.0), (40, 2.0)])
def test_soft_cap(device: OpDevice, dtype: torch.dtype, window: int, cap: float) -> None:
    """By the tiled kernels in every dtype: flash has no cap."""
    cu, dim = [0, 5, 5, 130, 200], 64
    qkv, grad_out = torch.randn(200, 4 * dim).to(dtype), torch.randn(200, 2 * dim).to(dtype)
    boundaries, exact = torch.tensor(cu, dtype=torch.int32), qkv.double().requires_grad_()
    q, k, v = exact.view(200, 4, dim).split([2, 1, 1], dim=1)
    expected = reference.attention(q, k, v, cu, window=window or None, cap=cap).flatten(1)
    expected.backward(grad_out.double())
    shape = (2, 1, dim**-0.5, window)
    made = device.agree(
        "attention", qkv, boundaries, *shape, torch.zeros_like(grad_out), torch.zeros(2, 200), 125, cap
    )
    assert_close(made[6], expected, name="out")
    assert exact.grad is not None
    made = device.agree(
        "attention_backward", grad_out, qkv, made[6], made[7], boundaries, *shape,
        torch.full_like(qkv, torch.nan), 125, cap, kind="model",
    )  # fmt: skip
    assert_close(made[9], exact.grad, name="grad", kind="op" if dtype == torch.float32 else "model")
