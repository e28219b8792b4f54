"""cuBLASLt products: transposes, accumulation, strides, odd sizes, both result dtypes, every candidate."""

from __future__ import annotations

import pytest
import torch

import reference
from device_ops import OpDevice
from tolerances import assert_close

# On the CPU cuBLASLt is one of the tests' own (tests/cublas_lt): what runs of ours is
# how products are described to it, and which algorithm is taken.
DTYPES = [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)]
both_ways = pytest.mark.parametrize(
    "transpose_a,transpose_b", [(False, True), (False, False), (True, False), (True, True)]
)


@pytest.mark.parametrize("dtype,out_dtype", DTYPES)
@both_ways
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 5, 3), (65, 130, 17), (512, 768, 1024), (33, 4096, 4096)])
def test_products(
    device: OpDevice,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    transpose_a: bool,
    transpose_b: bool,
    beta: float,
    sizes: tuple[int, ...],
) -> None:
    m, n, k = sizes
    a = torch.randn((k, m) if transpose_a else (m, k)).to(dtype)
    b = torch.randn((n, k) if transpose_b else (k, n)).to(dtype)
    out = torch.randn(m, n).to(out_dtype) if beta else torch.full((m, n), torch.nan).to(out_dtype)
    expected = reference.gemm(a.double(), b.double(), transpose_a=transpose_a, transpose_b=transpose_b)
    made = device.agree("gemm", a, b, out, transpose_a, transpose_b, beta)[2]
    assert_close(made, expected + (out.double() if beta else 0))


@pytest.mark.parametrize("dtype,out_dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (65, 130, 17), (512, 768, 1024), (7, 8, 0)])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_an_addend_apart_from_the_result(
    device: OpDevice, dtype: torch.dtype, out_dtype: torch.dtype, sizes: tuple[int, ...], offset: int
) -> None:
    m, n, k = sizes
    a, b = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    whole = torch.randn(m, n + 16).to(device.place, out_dtype)
    addend, before = whole[:, offset : offset + n], whole.clone()
    out = torch.full((m, n), torch.nan, dtype=out_dtype, device=device.place)
    device.ops.gemm_add(a.to(device.place), b.to(device.place), addend, out, False, True)
    assert_close(out.cpu(), a.double() @ b.double().T + addend.double().cpu())
    assert torch.equal(whole, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_strided_rows_at_any_address(device: OpDevice, dtype: torch.dtype, offset: int) -> None:
    a, b = torch.randn(40, 96).to(dtype)[:, offset : offset + 64], torch.randn(64, 48).to(dtype)
    whole = torch.zeros(40, 80)
    whole_cuda, a_cuda = (
        whole.to(device.place),
        torch.randn(40, 96).to(device.place, dtype)[:, offset : offset + 64],
    )
    a_cuda.copy_(a)
    device.ops.gemm(a_cuda, b.to(device.place), whole_cuda[:, offset : offset + 48], False, False, 0.0)
    whole[:, offset : offset + 48] = a.float() @ b.float()
    assert_close(whole_cuda.cpu(), whole)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_an_empty_sum_is_beta_times_out(device: OpDevice, beta: float) -> None:
    out = torch.ones(3, 4)
    assert torch.equal(
        device.agree("gemm", torch.empty(0, 3), torch.empty(0, 4), out, True, False, beta)[2], beta * out
    )
    device.agree("gemm", torch.empty(0, 3), torch.empty(3, 4), torch.empty(0, 4), False, False, beta)


def test_float32_products_do_not_use_tf32_unless_asked(device: OpDevice) -> None:
    a, b, out = (
        torch.randn(256, 1024).to(device.place),
        torch.randn(1024, 256).to(device.place),
        torch.empty(256, 256).to(device.place),
    )
    expected = a.double() @ b.double()
    device.ops.gemm(a, b, out, False, False, 0.0)
    assert_close(out, expected)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        device.ops.gemm(a, b, out, False, False, 0.0)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    error = ((out - expected).norm() / expected.norm()).item()
    assert 1e-5 < error < 2e-3


def test_every_candidate_is_right_and_the_choice_is_kept(device: OpDevice) -> None:
    a, b, out = (
        torch.randn(384, 512).bfloat16().to(device.place),
        torch.randn(640, 512).bfloat16().to(device.place),
        torch.zeros(384, 640).to(device.place),
    )
    expected = a.double() @ b.double().T
    count = device.ops.gemm_candidate(a, b, out, False, True, 0.0, 0)
    assert count >= 1
    for index in range(count):
        device.ops.gemm_candidate(a, b, out.fill_(torch.nan), False, True, 0.0, index)
        assert_close(out, expected, name=f"candidate {index}")
        first = out.clone()
        device.ops.gemm(a, b, out.fill_(torch.nan), False, True, 0.0)
        assert torch.equal(out, first)
    with pytest.raises(ValueError, match=f"candidate {count} of {count}"):
        device.ops.gemm_candidate(a, b, out, False, True, 0.0, count)
