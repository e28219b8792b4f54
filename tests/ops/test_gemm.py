"""Matrix products against torch, in both dtypes, all transposes, with accumulation and empty sides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fastsft
import reference
from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from tolerances import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def operand(rows: int, columns: int, transpose: bool, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn((columns, rows) if transpose else (rows, columns)).to(dtype)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [(7, 5, 3), (1, 64, 33), (65, 4100, 17), (4100, 65, 17), (70, 90, 70000)])
def test_products(
    dtype: torch.dtype, transpose_a: bool, transpose_b: bool, beta: float, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    a, b = operand(m, k, transpose_a, dtype), operand(k, n, transpose_b, dtype)
    out = torch.randn(m, n)
    expected = (
        reference.gemm(a.double(), b.double(), transpose_a=transpose_a, transpose_b=transpose_b) + beta * out
    )
    torch.ops.fastsft.gemm(a, b, out, transpose_a, transpose_b, beta)
    assert_close(out, expected)


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [(9, 8, 33), (1, 1, 1), (130, 70, 600)])
def test_bfloat16_result_is_rounded_once(
    onednn: bool, transpose_a: bool, transpose_b: bool, beta: float, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    a, b = operand(m, k, transpose_a, torch.bfloat16), operand(k, n, transpose_b, torch.bfloat16)
    out = torch.randn(m, 3 * n).bfloat16()[:, n : 2 * n]  # its rows are apart
    exact = reference.gemm(a.double(), b.double(), transpose_a=transpose_a, transpose_b=transpose_b)
    exact, slack = exact + beta * out, 1e-6 * k**0.5 * (1 + exact.abs().max())  # of sums in float32
    out.copy_(out if beta else torch.full_like(out, torch.nan))
    with torch.backends.mkldnn.flags(enabled=onednn):
        torch.ops.fastsft.gemm(a, b, out, transpose_a, transpose_b, beta)
    assert ((exact - slack).bfloat16() <= out).all() and (out <= (exact + slack).bfloat16()).all()


@pytest.mark.parametrize(
    "dtype,out_dtype", [(d, o) for d in DTYPES for o in dict.fromkeys((d, torch.float32))]
)
@pytest.mark.parametrize("sizes", [(7, 5, 3), (65, 130, 17), (4, 3, 0)])
def test_an_addend_apart_from_the_result(
    dtype: torch.dtype, out_dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    a, b = operand(m, k, False, dtype), operand(k, n, True, dtype)
    addend = torch.randn(m, 2 * n).to(out_dtype)[:, n:]  # its rows are apart
    before, out = addend.clone(), torch.full((m, n), torch.nan, dtype=out_dtype)
    torch.ops.fastsft.gemm_add(a, b, addend, out, False, True)
    in_place = addend.clone()
    torch.ops.fastsft.gemm(a, b, in_place, False, True, 1.0)
    assert torch.equal(out, in_place) and torch.equal(addend, before)
    assert_close(out, a.double() @ b.double().T + before.double())


def test_an_addend_of_another_form_is_refused() -> None:
    a, b, out = torch.ones(2, 3), torch.ones(3, 5), torch.ones(2, 5)
    with pytest.raises(ValueError, match="gemm_add: addend has shape"):
        torch.ops.fastsft.gemm_add(a, b, torch.ones(5), out, False, False)
    with pytest.raises(ValueError, match="gemm_add: addend is BFloat16"):
        torch.ops.fastsft.gemm_add(a, b, torch.ones(2, 5).bfloat16(), out, False, False)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_an_empty_sum_is_beta_times_out(beta: float) -> None:
    out = torch.ones(3, 4)
    torch.ops.fastsft.gemm(torch.empty(0, 3), torch.empty(0, 4), out, True, False, beta)
    assert torch.equal(out, torch.full((3, 4), beta))


def test_a_strided_result() -> None:
    whole = torch.zeros(5, 12)
    a, b = torch.randn(5, 6), torch.randn(6, 4)
    torch.ops.fastsft.gemm(a, b, whole[:, 4:8], False, False, 0.0)
    assert_close(whole[:, 4:8], a.double() @ b.double())
    assert whole[:, :4].eq(0).all() and whole[:, 8:].eq(0).all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_without_onednn(beta: float) -> None:
    a, b, out = torch.randn(7, 5), torch.randn(3, 5), torch.randn(7, 3)
    expected = a.double() @ b.double().T + beta * out
    with torch.backends.mkldnn.flags(enabled=False):
        torch.ops.fastsft.gemm(a, b, out, False, True, beta)
    assert_close(out, expected)


def test_processors_that_onednn_refuses() -> None:
    """torch lets oneDNN multiply float32 only where the processor has AVX-512."""
    program = (
        "import torch; from fastsft import _C\n"
        "a, b, out = torch.randn(7, 5), torch.randn(5, 3), torch.empty(7, 3)\n"
        "torch.ops.fastsft.gemm(a, b, out, False, False, 0.0)\n"
        "torch.testing.assert_close(out, a @ b)\n"
        "a, b, out = a.bfloat16(), b.bfloat16(), out.bfloat16()\n"
        "torch.ops.fastsft.gemm(a, b, out, False, False, 0.0)\n"
        "torch.testing.assert_close(out, (a.float() @ b.float()).bfloat16())\n"
    )
    paths = [str(Path(fastsft.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_errors_name_op_and_sizes() -> None:
    with pytest.raises(ValueError, match="gemm: inner sizes differ: 3 in a, 4 in b"):
        torch.ops.fastsft.gemm(torch.ones(2, 3), torch.ones(4, 5), torch.ones(2, 5), False, False, 0.0)
    with pytest.raises(ValueError, match="gemm: out has shape"):
        torch.ops.fastsft.gemm(torch.ones(2, 3), torch.ones(3, 5), torch.ones(5, 2), False, False, 0.0)
    with pytest.raises(ValueError, match="gemm: a is Double"):
        torch.ops.fastsft.gemm(
            torch.ones(2, 3).double(), torch.ones(3, 5), torch.ones(2, 5), False, False, 0.0
        )
    with pytest.raises(ValueError, match="requires grad"):
        torch.ops.fastsft.gemm(
            torch.ones(2, 3, requires_grad=True), torch.ones(3, 5), torch.ones(2, 5), False, False, 0.0
        )
