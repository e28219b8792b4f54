"""add_bias and its backward against plain sums."""

from __future__ import annotations

import pytest
import torch

from fastsft import _C  # noqa: F401
from tolerances import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (7, 33), (700, 96), (0, 16)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_gets_the_bias(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, bias = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    expected = x + bias
    torch.ops.fastsft.add_bias(x, bias)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_backward_is_what_autograd_says(dtype: torch.dtype, shape: tuple[int, int], beta: float) -> None:
    grad = torch.randn(shape).to(dtype)
    held = torch.randn(shape[1]) if beta else torch.full((shape[1],), torch.nan)
    bias = torch.zeros(shape[1], dtype=torch.float64, requires_grad=True)
    (torch.zeros(shape).double() + bias).backward(grad.double())
    expected = bias.grad + (beta * held.double() if beta else 0)
    torch.ops.fastsft.bias_backward(grad, held, beta)
    assert_close(held, expected)


def test_backward_repeats_to_the_bit() -> None:
    grad, sums = torch.randn(3000, 40), [torch.empty(40), torch.empty(40)]
    for total in sums:
        torch.ops.fastsft.bias_backward(grad, total, 0.0)
    assert torch.equal(*sums)


def test_shapes_and_types_are_checked() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"bias has shape \[3\], expected \[4\]"):
        torch.ops.fastsft.add_bias(x, torch.ones(3))
    with pytest.raises(ValueError, match="bias is BFloat16, expected Float"):
        torch.ops.fastsft.add_bias(x, torch.ones(4, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="grad_bias is BFloat16, expected Float"):
        torch.ops.fastsft.bias_backward(x, torch.ones(4, dtype=torch.bfloat16), 0.0)
    with pytest.raises(ValueError, match="expected contiguous"):
        torch.ops.fastsft.add_bias(torch.ones(3, 8)[:, :4], torch.ones(4))
