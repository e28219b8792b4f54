"""qk_norm and its backward against the plain formula under autograd."""

from __future__ import annotations

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from tolerances import assert_close

EPS = 1e-6
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HEADS = [(4, 2, 16), (3, 1, 10), (2, 2, 128)]


def plain(x: torch.Tensor, weight: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    return reference.qk_norm(x, weight[0], weight[1], heads, kv_heads, EPS)


def inputs(tokens: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, weight and the gradient of the result."""
    shape = (tokens, (heads + 2 * kv_heads) * dim)
    return [t.to(dtype) for t in (torch.randn(shape), torch.randn(2, dim), torch.randn(shape))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads,kv_heads,dim", HEADS)
@pytest.mark.parametrize("tokens", [0, 1, 130])
def test_forward(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, tokens: int) -> None:
    x, weight, _ = inputs(tokens, heads, kv_heads, dim, dtype)
    out, rstd = torch.full_like(x, torch.nan), torch.empty(tokens, heads + kv_heads)
    torch.ops.fastsft.qk_norm(x, weight, heads, kv_heads, EPS, out, rstd)
    assert_close(out, plain(x.double(), weight.double(), heads, kv_heads))
    normed = (heads + kv_heads) * dim
    assert torch.equal(out[:, normed:], x[:, normed:])
    squares = x[:, :normed].double().view(tokens, heads + kv_heads, dim).square().mean(-1)
    assert_close(rstd, (squares + EPS).rsqrt())
    torch.ops.fastsft.qk_norm(x, weight, heads, kv_heads, EPS, x, rstd)
    assert torch.equal(x, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads,kv_heads,dim", HEADS)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_backward(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, beta: float) -> None:
    x, weight, grad = inputs(130, heads, kv_heads, dim, dtype)
    exact_x, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    plain(exact_x, exact_weight, heads, kv_heads).backward(grad.double())
    rstd, held = torch.empty(130, heads + kv_heads), torch.randn(2, dim)
    torch.ops.fastsft.qk_norm(x, weight, heads, kv_heads, EPS, torch.empty_like(x), rstd)
    expected_weight = exact_weight.grad + (beta * held.double() if beta else 0)
    held = held if beta else torch.full_like(held, torch.nan)
    torch.ops.fastsft.qk_norm_backward(grad, x, weight, rstd, heads, kv_heads, held, beta)
    assert_close(grad, exact_x.grad)
    assert_close(held, expected_weight)


def test_backward_by_finite_differences() -> None:
    x, weight, grad = inputs(2, 2, 1, 4, torch.float32)
    rstd, grad_weight, result = torch.empty(2, 3), torch.empty(2, 4), grad.clone()
    torch.ops.fastsft.qk_norm(x, weight, 2, 1, EPS, torch.empty_like(x), rstd)
    torch.ops.fastsft.qk_norm_backward(result, x, weight, rstd, 2, 1, grad_weight, 0.0)
    wide = [x.double(), weight.double()]
    for which, gradient in enumerate([result, grad_weight]):
        for i in range(gradient.numel()):
            step = torch.zeros(gradient.numel()).double()
            step[i] = 1e-5
            up, down = (
                (
                    plain(*(t + s * step.view_as(t) if k == which else t for k, t in enumerate(wide)), 2, 1)
                    * grad
                )
                .sum()
                .item()
                for s in (1, -1)
            )
            assert gradient.flatten()[i].item() == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-5)


def test_shapes_are_checked() -> None:
    x, rstd = torch.ones(3, 16), torch.ones(3, 3)
    with pytest.raises(ValueError, match="3 heads of 8 do not fit a row of 16"):
        torch.ops.fastsft.qk_norm(x, torch.ones(2, 8), 2, 1, EPS, x, rstd)
    with pytest.raises(ValueError, match=r"rstd has shape \[3, 3\], expected \[3, 4\]"):
        torch.ops.fastsft.qk_norm(x, torch.ones(2, 4), 3, 1, EPS, x, rstd)
    with pytest.raises(ValueError, match="expected one or more of each"):
        torch.ops.fastsft.qk_norm(x, torch.ones(2, 4), 3, 0, EPS, x, rstd)
    with pytest.raises(ValueError, match=r"expected \[tokens, width\] and \[2, head_dim\]"):
        torch.ops.fastsft.qk_norm(x, torch.ones(1, 4), 2, 1, EPS, x, rstd)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_without_the_weight_gradient(dtype: torch.dtype) -> None:
    x, weight, grad = inputs(130, 4, 2, 16, dtype)
    rstd = torch.empty(130, 6)
    torch.ops.fastsft.qk_norm(x, weight, 4, 2, EPS, torch.empty_like(x), rstd)
    exact = x.double().requires_grad_()
    plain(exact, weight.double(), 4, 2).backward(grad.double())
    torch.ops.fastsft.qk_norm_backward(grad, x, weight, rstd, 4, 2, None, 0.0)
    assert_close(grad, exact.grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_offset_of_the_weight(dtype: torch.dtype) -> None:
    x, weight, grad = inputs(130, 3, 1, 10, dtype)
    exact_x, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = reference.qk_norm(exact_x, exact_weight[0], exact_weight[1], 3, 1, EPS, 1.0)
    expected.backward(grad.double())
    out, rstd, held = torch.empty_like(x), torch.empty(130, 4), torch.full((2, 10), torch.nan)
    torch.ops.fastsft.qk_norm(x, weight, 3, 1, EPS, out, rstd, 1.0)
    assert_close(out, expected)
    torch.ops.fastsft.qk_norm_backward(grad, x, weight, rstd, 3, 1, held, 0.0, 1.0)
    assert_close(grad, exact_x.grad)
    assert_close(held, exact_weight.grad)
