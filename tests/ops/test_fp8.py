"""Matrices in 8-bit floats: bytes and scales are torchao's, and those of a plain rule, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import reference
from device_ops import OpDevice

RECORDED = load_file(Path(__file__).parents[1] / "golden" / "fp8" / "casts.safetensors")
MATRICES = sorted(name for name in RECORDED if "." not in name)
# Of the recorder: format, one scale a row, scales are powers of two.
CASTS = {
    "rowwise": (torch.float8_e4m3fn, True, True),
    "rowwise_hybrid": (torch.float8_e5m2, True, True),
    "tensorwise": (torch.float8_e4m3fn, False, False),
    "tensorwise_hybrid": (torch.float8_e5m2, False, False),
    "backward_weight": (torch.float8_e4m3fn, False, True),
}


def quantized(
    device: OpDevice, x: Tensor, kind: torch.dtype, rowwise: bool, power_of_2: bool
) -> tuple[Tensor, Tensor]:
    """Bytes and scales by the op, on the device and on the CPU alike."""
    out, scales = torch.zeros(x.shape).to(kind), torch.full((len(x),), torch.nan)
    made = device.agree("fp8_quantize", x, rowwise, power_of_2, out, scales)
    return made[3].view(torch.uint8), made[4]


def transposed(
    device: OpDevice, x: Tensor, kind: torch.dtype, rowwise: bool, power_of_2: bool, width: int = 0
) -> tuple[Tensor, Tensor]:
    """Bytes and scales by the op. width: elements of a row of the result, by default those of a column."""
    rows, columns = x.shape
    out, scales = torch.full((columns, width or rows), 7.0).to(kind), torch.full((columns,), torch.nan)
    made = device.agree("fp8_quantize_transposed", x, rowwise, power_of_2, out, scales)
    return made[3].view(torch.uint8), made[4]


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("name", MATRICES)
def test_bytes_are_those_of_torchao(device: OpDevice, name: str, cast: str) -> None:
    x, (kind, rowwise, power_of_2) = RECORDED[name], CASTS[cast]
    data, scales = quantized(device, x, kind, rowwise, power_of_2)
    assert torch.equal(data, RECORDED[f"{name}.{cast}.bytes"])
    factors = RECORDED[f"{name}.{cast}.factors"]
    assert torch.equal(scales, (1 / factors).expand(len(x)))
    if not rowwise:
        data, scales = transposed(device, x, kind, False, power_of_2)
        assert torch.equal(data, RECORDED[f"{name}.{cast}.bytes"].T)
        assert torch.equal(scales, (1 / factors).expand(x.shape[1]))


@pytest.mark.parametrize("cast", ["rowwise", "rowwise_hybrid"])
@pytest.mark.parametrize("name", MATRICES)
def test_bytes_of_columns_are_those_of_torchao(device: OpDevice, name: str, cast: str) -> None:
    """Each column has its scale, in the copy that has columns as rows."""
    x, (kind, rowwise, power_of_2) = RECORDED[name], CASTS[cast]
    data, scales = transposed(device, x, kind, rowwise, power_of_2)
    assert torch.equal(data, RECORDED[f"{name}.{cast}_columns.bytes"].T)
    assert torch.equal(scales, 1 / RECORDED[f"{name}.{cast}_columns.factors"])


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("limit", [1.0, 0.3])
def test_every_bfloat16_is_rounded_as_torch_rounds_it(kind: torch.dtype, limit: float) -> None:
    """All finite values in one row, whose largest decides what the others become."""
    bits = torch.arange(0x7F80, dtype=torch.int32).to(torch.int16)
    values = torch.cat([bits.view(torch.bfloat16), -bits.view(torch.bfloat16)])
    x = values[values.float().abs() <= limit].view(1, -1)
    for rowwise, power_of_2 in ((True, True), (True, False), (False, True)):
        out, scales = torch.zeros(x.shape).to(kind), torch.zeros(1)
        torch.ops.fastsft.fp8_quantize(x, rowwise, power_of_2, out, scales)
        expected, wanted = reference.fp8_quantize(x, kind, rowwise=rowwise, power_of_2=power_of_2)
        assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8)) and torch.equal(scales, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5000), (300, 32), (129, 200)])
def test_the_plain_rule(device: OpDevice, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = (torch.randn(shape) * torch.logspace(-3, 3, shape[0])[:, None]).to(dtype)
    for kind, rowwise, power_of_2 in CASTS.values():
        expected, wanted = reference.fp8_quantize(x, kind, rowwise=rowwise, power_of_2=power_of_2)
        data, scales = quantized(device, x, kind, rowwise, power_of_2)
        assert torch.equal(data, expected.view(torch.uint8)) and torch.equal(scales, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 130), (300, 32), (129, 200), (2500, 24)])
def test_columns_by_the_plain_rule(device: OpDevice, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """And the zeros behind them."""
    rows, columns = shape
    x = (torch.randn(shape) * torch.logspace(-3, 3, columns)).to(dtype)
    for kind, rowwise, power_of_2 in CASTS.values():
        expected, wanted = reference.fp8_quantize(x.T, kind, rowwise=rowwise, power_of_2=power_of_2)
        for width in (rows, rows + 3, (rows + 15) // 16 * 16):
            data, scales = transposed(device, x, kind, rowwise, power_of_2, width)
            assert torch.equal(data[:, :rows], expected.view(torch.uint8)) and torch.equal(scales, wanted)
            assert not data[:, rows:].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_column_that_is_not_finite_stays_so(device: OpDevice, bad: float) -> None:
    x = torch.randn(70, 33).bfloat16()
    x[66, 7] = bad
    data, scales = transposed(device, x, torch.float8_e4m3fn, True, True, 80)
    values = data.view(torch.float8_e4m3fn).float() * scales[:, None]
    assert not values[7, :70].isfinite().any()
    assert values[torch.arange(33) != 7].isfinite().all()


@pytest.mark.parametrize("rowwise", [True, False])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(device: OpDevice, bad: float, rowwise: bool) -> None:
    """The product of its row, or of the whole matrix, is not finite; other rows are as without it."""
    x = torch.randn(4, 32).bfloat16()
    x[2, 7] = bad
    for power_of_2 in (True, False):
        data, scales = quantized(device, x, torch.float8_e4m3fn, rowwise, power_of_2)
        values = data.view(torch.float8_e4m3fn).float() * scales[:, None]
        assert not values[2].isfinite().any()
        others = [0, 1, 3]
        if rowwise:
            alone = quantized(device, x[others].contiguous(), torch.float8_e4m3fn, True, power_of_2)
            assert torch.equal(data[others], alone[0]) and torch.equal(scales[others], alone[1])
        else:
            assert not values.isfinite().any()


def test_empty_matrices() -> None:
    for shape in ((0, 16), (16, 0)):
        x, out = torch.zeros(shape).bfloat16(), torch.zeros(shape).to(torch.float8_e4m3fn)
        torch.ops.fastsft.fp8_quantize(x, True, True, out, torch.zeros(shape[0]))
        torch.ops.fastsft.fp8_quantize_transposed(
            x,
            shape[0] == 0,
            True,
            out.view(torch.uint8).T.contiguous().view(torch.float8_e4m3fn),
            torch.zeros(shape[1]),
        )


def test_other_shapes_and_types_are_refused() -> None:
    x, out, scales = torch.ones(4, 6), torch.zeros(4, 6).to(torch.float8_e4m3fn), torch.zeros(4)
    turned, by_column = torch.zeros(6, 4).to(torch.float8_e4m3fn), torch.zeros(6)
    refused = [
        ("x is Half", x.half(), out, scales),
        ("x has shape", x[0], out, scales),
        ("x must be contiguous", torch.ones(4, 12)[:, :6], out, scales),
        ("out is Byte", x, out.view(torch.uint8), scales),
        ("out has shape", x, turned, scales),
        ("scales has shape", x, out, by_column),
        ("scales is Double", x, out, scales.double()),
    ]
    for message, *arguments in refused:
        with pytest.raises(ValueError, match=message):
            torch.ops.fastsft.fp8_quantize(arguments[0], True, True, *arguments[1:])
    for short in (out, turned[:, :3].contiguous()):
        with pytest.raises(ValueError, match=r"out has shape .*, expected .6, at least 4."):
            torch.ops.fastsft.fp8_quantize_transposed(x, False, True, short, by_column)
    with pytest.raises(ValueError, match="scales has shape"):
        torch.ops.fastsft.fp8_quantize_transposed(x, False, True, turned, scales)


def fused_norm(
    device: OpDevice, shape: tuple[int, int], residual: bool, keep: bool, offset: float, power_of_2: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Results of rms_norm_fp8, and of rms_norm and fp8_quantize: sum, rstd, bytes, scales, and kept out."""
    rows, hidden = shape
    x, weight = torch.randn(shape).bfloat16(), torch.randn(hidden).bfloat16()
    r = torch.randn(shape).bfloat16() if residual else None
    total = torch.zeros_like(x) if residual else None
    out, rstd = torch.full_like(x, torch.nan), torch.zeros(rows)
    values, scales = torch.zeros(shape).to(torch.float8_e4m3fn), torch.zeros(rows)
    apart = device.agree("rms_norm", x, r, weight, 1e-5, total, out, rstd, offset)
    normed = apart[5]
    expected = [apart[4], apart[6], *quantized(device, normed, torch.float8_e4m3fn, True, power_of_2)]
    made = device.run(
        "rms_norm_fp8", x, r, weight, 1e-5, total, out, rstd, values, scales, power_of_2, keep, offset
    )
    ours = [made[4], made[6], made[7].view(torch.uint8), made[8]]
    return ([*ours, made[5]], [*expected, normed]) if keep else (ours, expected)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", [(5, 136), (3, 2200), (6, 33), (2, 9000), (2, 33000)])
def test_a_norm_quantises_its_result(
    device: OpDevice, shape: tuple[int, int], residual: bool, keep: bool
) -> None:
    """The results have the bits of rms_norm and fp8_quantize.

    Shapes: a row is one warp; a block; read by single elements; too wide for registers.
    """
    for power_of_2, offset in ((True, 0.0), (False, 1.0)):
        ours, expected = fused_norm(device, shape, residual, keep, offset, power_of_2)
        for one, two in zip(ours, expected, strict=True):
            assert (one is None and two is None) or torch.equal(one, two)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("gelu", [True, False])
@pytest.mark.parametrize("shape", [(5, 136), (3, 2200), (6, 33), (2, 9000), (2, 33000)])
def test_swiglu_quantises_its_result(
    device: OpDevice, shape: tuple[int, int], gelu: bool, keep: bool
) -> None:
    rows, width = shape
    gate_up, out = torch.randn(rows, 2 * width).bfloat16(), torch.full(shape, torch.nan).bfloat16()
    gate_up[1] *= 1e-20  # a row of zeros, and of subnormal numbers
    values, scales = torch.zeros(shape).to(torch.float8_e4m3fn), torch.zeros(rows)
    activated = device.agree("swiglu", gate_up, out, gelu)[1]
    for power_of_2 in (True, False):
        bits, wanted = quantized(device, activated, torch.float8_e4m3fn, True, power_of_2)
        made = device.run("swiglu_fp8", gate_up, out, values, scales, power_of_2, keep, gelu)
        assert torch.equal(made[2].view(torch.uint8), bits) and torch.equal(made[3], wanted)
        assert not keep or torch.equal(made[1], activated)
