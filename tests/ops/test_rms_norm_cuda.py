"""The CUDA kernels of rms_norm against the plain formula."""

from __future__ import annotations

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from tolerances import assert_close

pytestmark = pytest.mark.cuda
EPS = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 8), (300, 257), (1000, 4096), (0, 16)])
def test_forward_and_backward(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, residual, grad_out, stream = (torch.randn(shape, device="cuda").to(dtype) for _ in range(4))
    weight, grad_weight = torch.randn(shape[1], device="cuda").to(dtype), torch.randn(shape[1], device="cuda")
    out, total = torch.empty_like(x), torch.empty_like(x)
    rstd = torch.empty(shape[0], device="cuda")
    torch.ops.fastsft.rms_norm(x, residual, weight, EPS, total, out, rstd)
    assert torch.equal(total, x + residual)
    exact, exact_weight = total.double().requires_grad_(), weight.double().requires_grad_()
    expected = reference.rms_norm(exact, exact_weight, EPS)
    assert_close(out, expected)
    expected.backward(grad_out.double())
    expected_stream, expected_weight = stream.double() + exact.grad, grad_weight.double() + exact_weight.grad
    torch.ops.fastsft.rms_norm_backward(grad_out, total, weight, rstd, stream, grad_weight, 1.0)
    assert_close(stream, expected_stream)
    assert_close(grad_weight, expected_weight)


def test_backward_is_deterministic() -> None:
    x, grad_out, weight = (torch.randn(*shape, device="cuda") for shape in [(999, 640), (999, 640), (640,)])
    out, rstd, results = torch.empty_like(x), torch.empty(999, device="cuda"), []
    torch.ops.fastsft.rms_norm(x, None, weight, EPS, None, out, rstd)
    for _ in range(2):
        results.append(torch.zeros(640, device="cuda"))
        torch.ops.fastsft.rms_norm_backward(grad_out, x, weight, rstd, torch.zeros_like(x), results[-1], 0.0)
    assert torch.equal(*results)
