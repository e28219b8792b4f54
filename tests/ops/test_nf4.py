"""Four bits with double quantisation, against what bitsandbytes made of the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from device_ops import OpDevice, bits_equal
from fastsft import _C  # noqa: F401

RECORDED = load_file(Path(__file__).parents[1] / "golden" / "nf4" / "values.safetensors")
CASES = sorted({name.partition(".")[0] for name in RECORDED if "." in name})
BLOCK, BLOCK_BYTES, GROUP = 64, 33, 256


def quantized(values: Tensor) -> tuple[Tensor, Tensor]:
    blocks = values.numel() // BLOCK
    packed = torch.full((blocks, BLOCK_BYTES), 0xAA, dtype=torch.uint8)
    scales = torch.full((1 + -(-blocks // GROUP),), torch.nan)
    torch.ops.fastsft.nf4_quantize(values, packed, scales)
    return packed, scales


def recorded(case: str) -> tuple[Tensor, Tensor]:
    """bitsandbytes' bytes in our order: a block's level of its scale is after its pairs."""
    pairs, levels = RECORDED[f"{case}.pairs"], RECORDED[f"{case}.levels_of_scales"]
    return torch.cat([pairs.view(-1, BLOCK // 2), levels.view(-1, 1)], 1), RECORDED[f"{case}.scales"]


@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_bitsandbytes(case: str) -> None:
    packed, scales = quantized(RECORDED[f"{case}.values"])
    assert torch.equal(packed, recorded(case)[0])
    assert torch.equal(scales, recorded(case)[1])


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_bitsandbytes(device: OpDevice, case: str) -> None:
    packed, scales = recorded(case)
    out = torch.full_like(RECORDED[f"{case}.values"], torch.nan)
    made = device.agree("nf4_dequantize", packed, scales, RECORDED["levels"], out)[3]
    assert bits_equal(made, RECORDED[f"{case}.dequantized"])


def test_more_blocks_than_are_quantized_at_once(device: OpDevice) -> None:
    """Each group of scales is what it is alone but for the mean, which is of all."""
    values = torch.randn(70_000 * BLOCK)
    packed, scales = quantized(values)
    assert scales[0] == pytest.approx(values.view(-1, BLOCK).abs().amax(-1).mean().item(), rel=1e-6)
    made = device.agree("nf4_dequantize", packed, scales, RECORDED["levels"], torch.empty_like(values))[3]
    error = (made - values).view(-1, BLOCK)
    # Half of the widest step between two levels, and what 256 levels of the scales leave.
    assert (error.abs().amax(-1) <= 0.16 * values.view(-1, BLOCK).abs().amax(-1)).all()
    assert error.square().mean().sqrt() < 0.1
    # The blocks after the first piece begin a group of scales, with pairs that depend on them alone.
    alone = quantized(values[65_536 * BLOCK :])[0]
    assert torch.equal(packed[65_536:, : BLOCK // 2], alone[:, : BLOCK // 2])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_not_finite_are_never_numbers_afterwards(bad: float, dtype: torch.dtype) -> None:
    values = torch.randn(3 * BLOCK, dtype=dtype)
    values[100] = bad
    out = torch.zeros_like(values)
    torch.ops.fastsft.nf4_dequantize(*quantized(values), RECORDED["levels"], out)
    assert not out.isfinite().any()


def test_other_shapes_and_types_are_refused() -> None:
    packed, scales = recorded("part")
    levels, values = RECORDED["levels"], RECORDED["part.values"]
    quantize, dequantize = torch.ops.fastsft.nf4_quantize, torch.ops.fastsft.nf4_dequantize
    refused: list[tuple[str, Tensor, Tensor, Tensor, Tensor]] = [
        ("out", packed, scales, levels, torch.empty(len(values) - 1)),
        ("out", packed, scales, levels, torch.empty(len(values), dtype=torch.float64)),
        ("packed", packed[1:], scales, levels, torch.empty_like(values)),
        ("packed", packed.char(), scales, levels, torch.empty_like(values)),
        ("scales", packed, scales[1:], levels, torch.empty_like(values)),
        ("scales", packed, scales.double(), levels, torch.empty_like(values)),
        ("levels", packed, scales, levels[1:], torch.empty_like(values)),
        ("contiguous", packed.t().contiguous().t(), scales, levels, torch.empty_like(values)),
    ]
    for names, *arguments in refused:
        with pytest.raises((ValueError, RuntimeError), match=names):
            dequantize(*arguments)
    for name, *arguments in [
        ("values", values[1:], packed, scales),
        ("values", values.view(-1, BLOCK), packed, scales),
        ("values", values.double(), packed, scales),
        ("packed", values, packed[1:], scales),
        ("scales", values, packed, scales[1:]),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=name):
            quantize(*arguments)
