"""rms_norm and its backward against the plain formula under autograd."""

from __future__ import annotations

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from tolerances import assert_close

EPS = 1e-5
SHAPES = [(1, 8), (5, 33), (300, 64), (0, 16)]


def backward_of(x: torch.Tensor, weight: torch.Tensor, grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    reference.rms_norm(x, weight, EPS).backward(grad_out.double())
    return x.grad, weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight = torch.randn(shape[1]).to(dtype)
    out, total, rstd = torch.empty_like(x), torch.empty_like(x), torch.empty(shape[0])
    torch.ops.fastsft.rms_norm(x, None, weight, EPS, None, out, rstd)
    assert_close(out, reference.rms_norm(x.double(), weight.double(), EPS))
    torch.ops.fastsft.rms_norm(x, residual, weight, EPS, total, out, rstd)
    assert torch.equal(total, x + residual)
    assert_close(out, reference.rms_norm(total.double(), weight.double(), EPS))
    assert_close(rstd, (total.double().square().mean(-1) + EPS).rsqrt())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_backward_adds_to_the_stream(dtype: torch.dtype, shape: tuple[int, int], beta: float) -> None:
    x, grad_out, stream = (torch.randn(shape).to(dtype) for _ in range(3))
    weight, grad_weight = torch.randn(shape[1]).to(dtype), torch.randn(shape[1])
    rstd = (x.double().square().mean(-1) + EPS).rsqrt().float()
    expected_x, expected_weight = backward_of(x, weight, grad_out)
    before, before_weight = stream.clone(), grad_weight.clone()
    torch.ops.fastsft.rms_norm_backward(grad_out, x, weight, rstd, stream, grad_weight, beta)
    assert_close(stream, before.double() + expected_x)
    assert_close(grad_weight, beta * before_weight.double() + expected_weight)


def test_backward_by_finite_differences() -> None:
    x, weight, grad_out = torch.randn(2, 6).double(), torch.randn(6).double(), torch.randn(2, 6).double()
    rstd = (x.square().mean(-1) + EPS).rsqrt().float()
    grad_x, grad_weight = torch.zeros(2, 6), torch.zeros(6)
    torch.ops.fastsft.rms_norm_backward(
        grad_out.float(), x.float(), weight.float(), rstd, grad_x, grad_weight, 0.0
    )
    for i in range(x.numel()):
        step = torch.zeros(x.numel()).double()
        step[i] = 1e-5
        up, down = (
            (reference.rms_norm(x + s * step.view_as(x), weight, EPS) * grad_out).sum() for s in (1, -1)
        )
        assert grad_x.flatten()[i].item() == pytest.approx(((up - down) / 2e-5).item(), rel=1e-3, abs=1e-5)


def test_a_residual_needs_a_sum() -> None:
    x, w = torch.ones(2, 4), torch.ones(4)
    with pytest.raises(ValueError, match="residual and sum go together"):
        torch.ops.fastsft.rms_norm(x, x, w, EPS, None, torch.empty(2, 4), torch.empty(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_backward_without_the_weight_gradient(dtype: torch.dtype) -> None:
    x, grad_out, stream = (torch.randn(130, 96).to(dtype) for _ in range(3))
    weight = torch.randn(96).to(dtype)
    rstd = (x.double().square().mean(-1) + EPS).rsqrt().float()
    expected_x, _ = backward_of(x, weight, grad_out)
    before = stream.clone()
    torch.ops.fastsft.rms_norm_backward(grad_out, x, weight, rstd, stream, None, 0.0)
    assert_close(stream, before.double() + expected_x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_backward_makes_the_output_again(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, grad_out, stream = (torch.randn(shape).to(dtype) for _ in range(3))
    weight, out, rstd = torch.randn(shape[1]).to(dtype), torch.empty_like(x), torch.empty(shape[0])
    torch.ops.fastsft.rms_norm(x, None, weight, EPS, None, out, rstd)
    plain, remade = (stream.clone(), torch.zeros(shape[1])), (stream.clone(), torch.zeros(shape[1]))
    torch.ops.fastsft.rms_norm_backward(grad_out, x, weight, rstd, *plain, 1.0)
    torch.ops.fastsft.rms_norm_backward(grad_out, x, weight, rstd, *remade, 1.0, True)
    assert torch.equal(grad_out, out)
    assert torch.equal(plain[0], remade[0]) and torch.equal(plain[1], remade[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_offset_of_the_weight(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, grad_out, stream = (torch.randn(shape).to(dtype) for _ in range(3))
    weight, out, rstd = torch.randn(shape[1]).to(dtype), torch.empty_like(x), torch.empty(shape[0])
    exact_x, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = reference.rms_norm(exact_x, exact_weight, EPS, 1.0)
    expected.backward(grad_out.double())
    torch.ops.fastsft.rms_norm(x, None, weight, EPS, None, out, rstd, 1.0)
    assert_close(out, expected)
    before, grad_weight = stream.clone(), torch.full((shape[1],), torch.nan)
    torch.ops.fastsft.rms_norm_backward(grad_out, x, weight, rstd, stream, grad_weight, 0.0, True, 1.0)
    assert torch.equal(grad_out, out)
    assert_close(stream, before.double() + exact_x.grad)
    assert_close(grad_weight, exact_weight.grad)
