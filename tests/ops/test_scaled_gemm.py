"""Products of 8-bit floats with scales, against float64 products of what the bytes mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from device_ops import OpDevice
from tolerances import assert_close

# On the CPU cuBLASLt is one of the tests' own (tests/cublas_lt), which takes what cuBLASLt's pages say.
KINDS = [torch.float8_e4m3fn, torch.float8_e5m2]


def operands(
    m: int, n: int, k: int, kind: torch.dtype = torch.float8_e4m3fn, *, rowwise: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of several sizes and their scales, of both operands."""
    x = torch.randn(m, k) * torch.logspace(-2, 2, m)[:, None]
    w = torch.randn(n, k) * torch.logspace(-1, 1, n)[:, None]
    a = reference.fp8_quantize(x.bfloat16(), kind, rowwise=rowwise, power_of_2=rowwise)
    b = reference.fp8_quantize(w.bfloat16(), torch.float8_e4m3fn, rowwise=rowwise, power_of_2=rowwise)
    return (*a, *b)


def product(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor) -> Tensor:
    left, right = (x.double() * s.double()[:, None] for x, s in ((a, scale_a), (b, scale_b)))
    return reference.gemm(left, right, transpose_b=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rowwise", [True, False])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 16, 16), (37, 48, 80), (130, 16, 512), (33, 1024, 4096)])
def test_products(
    device: OpDevice, kind: torch.dtype, rowwise: bool, out_dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    given = operands(m, n, k, kind, rowwise=rowwise)
    out = torch.full((m, n), torch.nan).to(out_dtype)
    made = device.agree("scaled_gemm", *given, out, out, 0.0, rowwise, True)[5]
    assert_close(made, product(*given))


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_an_addend(device: OpDevice, out_dtype: torch.dtype, in_place: bool) -> None:
    given = operands(37, 48, 80)
    addend = (100 * torch.randn(37, 48)).to(out_dtype)
    out = addend if in_place else torch.full((37, 48), torch.nan).to(out_dtype)
    made = device.agree("scaled_gemm", *given, addend, out, 1.0, True, False)[5]
    assert_close(made, product(*given) + addend.double())


def test_blocks_of_rows_on_the_cpu() -> None:
    """More rows than are widened at once, of either operand."""
    for m, n in ((70_000, 16), (16, 70_000)):
        given = operands(m, n, 80)
        out = torch.empty(m, n)
        torch.ops.fastsft.scaled_gemm(*given, out, out, 0.0, True, False)
        assert_close(out, product(*given))


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_sum_without_terms(device: OpDevice, beta: float) -> None:
    """As in the weight gradient of a rank without tokens."""
    a, b = torch.zeros(5, 0).to(torch.float8_e4m3fn), torch.zeros(16, 0).to(torch.float8_e4m3fn)
    given = (a, torch.full((5,), torch.nan), b, torch.full((16,), torch.nan))
    out = torch.full((5, 16), 3.0 if beta else torch.nan)
    made = device.agree("scaled_gemm", *given, out, out, beta, True, False)[5]
    assert torch.equal(made, torch.full((5, 16), 3.0 * beta))


def test_an_empty_operand() -> None:
    given = operands(0, 16, 32)
    out = torch.empty(0, 16)
    torch.ops.fastsft.scaled_gemm(*given, out, out, 0.0, True, False)


def test_other_shapes_and_types_are_refused() -> None:
    a, scale_a, b, scale_b = operands(5, 16, 32)
    out = torch.zeros(5, 16)
    five = torch.zeros(16, 32).to(torch.float8_e5m2)
    refused: list[tuple[str, Any]] = [
        ("a is BFloat16", (torch.ones(5, 32).bfloat16(), scale_a, b, scale_b, out, out, 0.0)),
        ("b is Float8_e5m2", (a, scale_a, five, scale_b, out, out, 0.0)),
        ("b has shape", (a, scale_a, torch.zeros(16, 48).to(a.dtype), scale_b, out, out, 0.0)),
        ("scale_a has shape", (a, scale_b, b, scale_b, out, out, 0.0)),
        ("scale_b is Double", (a, scale_a, b, scale_b.double(), out, out, 0.0)),
        ("out is Half", (a, scale_a, b, scale_b, out.half(), out.half(), 0.0)),
        ("out has shape", (a, scale_a, b, scale_b, out[:4], out[:4], 0.0)),
        ("the addend must be out", (a, scale_a, b, scale_b, out.clone(), out, 0.0)),
    ]
    for message, arguments in refused:
        with pytest.raises(ValueError, match=message):
            torch.ops.fastsft.scaled_gemm(*arguments, True, False)


@pytest.mark.parametrize(("n", "k"), [(24, 32), (16, 40)])
def test_sizes_that_are_no_multiple_of_16_are_refused(n: int, k: int) -> None:
    given, out = operands(5, n, k), torch.zeros(5, n)
    with pytest.raises(ValueError, match="expected multiples of 16"):
        torch.ops.fastsft.scaled_gemm(*given, out, out, 0.0, True, False)
