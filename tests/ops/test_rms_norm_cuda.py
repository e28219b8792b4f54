"""The CUDA kernels of rms_norm: every row layout (warp, block, wide), both access widths, no rows."""

from __future__ import annotations

import pytest
import torch

import reference
from device_ops import OpDevice
from tolerances import assert_close

EPS = 1e-5
DTYPES = [torch.float32, torch.bfloat16]
# Hidden sizes: one element, less than a warp, odd, a warp with four accesses, a block, beyond registers.
SHAPES = [(1, 1), (3, 8), (300, 257), (77, 512), (1500, 1024), (65, 4096), (9, 5120), (5, 16384), (3, 40000)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (0, 16)])
def test_forward_with_residual(device: OpDevice, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight, nothing = torch.randn(shape[1]).to(dtype), torch.full(shape, torch.nan).to(dtype)
    made = device.agree("rms_norm", x, residual, weight, EPS, nothing, nothing.clone(), torch.zeros(shape[0]))
    assert torch.equal(made[4], x + residual)
    assert_close(made[5], reference.rms_norm(made[4].double(), weight.double(), EPS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_alone_and_onto_the_residual(device: OpDevice, dtype: torch.dtype) -> None:
    x, weight, rstd = torch.randn(50, 640).to(dtype), torch.randn(640).to(dtype), torch.zeros(50)
    made = device.agree("rms_norm", x, None, weight, EPS, None, torch.zeros_like(x), rstd)
    assert_close(made[5], reference.rms_norm(x.double(), weight.double(), EPS))
    stream = torch.randn(50, 640).to(dtype)
    made = device.agree("rms_norm", x, stream, weight, EPS, stream, torch.zeros_like(x), rstd)
    assert torch.equal(made[4], x + stream)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (0, 16)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_backward(device: OpDevice, dtype: torch.dtype, shape: tuple[int, int], beta: float) -> None:
    x, grad_out, stream = (torch.randn(shape).to(dtype) for _ in range(3))
    weight = torch.randn(shape[1]).to(dtype)
    held = torch.randn(shape[1]) if beta else torch.full((shape[1],), torch.nan)
    rstd = torch.rsqrt(x.float().square().mean(-1) + EPS)
    exact, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    reference.rms_norm(exact, exact_weight, EPS).backward(grad_out.double())
    made = device.agree("rms_norm_backward", grad_out, x, weight, rstd, stream, held, beta)
    assert exact.grad is not None and exact_weight.grad is not None
    assert_close(made[4], stream.double() + exact.grad)
    assert_close(made[5], exact_weight.grad + (held.double() if beta else 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward_makes_the_output_again(
    device: OpDevice, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    x, grad_out, stream = (torch.randn(shape).to(dtype) for _ in range(3))
    weight, held, rstd = torch.randn(shape[1]).to(dtype), torch.zeros(shape[1]), torch.zeros(shape[0])
    _, _, _, _, _, out, rstd = device.agree("rms_norm", x, None, weight, EPS, None, torch.zeros_like(x), rstd)
    plain = device.agree("rms_norm_backward", grad_out, x, weight, rstd, stream, held, 1.0)
    remade = device.agree("rms_norm_backward", grad_out, x, weight, rstd, stream, held, 1.0, True)
    assert torch.equal(remade[0], out)
    assert torch.equal(remade[4], plain[4]) and torch.equal(remade[5], plain[5])


@pytest.mark.parametrize("hidden", [64, 66])
def test_misaligned_rows(device: OpDevice, hidden: int) -> None:
    x = torch.randn(40 * hidden + 1)[1:].view(40, hidden)
    weight, rstd = torch.randn(hidden), torch.zeros(40)
    base = torch.zeros(40 * hidden + 1, device=device.place)
    view = base[1:].view(40, hidden)
    view.copy_(x)
    out = torch.empty_like(view)
    device.ops.rms_norm(view, None, weight.to(device.place), EPS, None, out, rstd.to(device.place))
    assert_close(out.cpu(), reference.rms_norm(x.double(), weight.double(), EPS))
