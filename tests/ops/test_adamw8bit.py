"""adamw8bit over parts of tensors, next to recorded steps of bitsandbytes' AdamW8bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import reference
from fastsft import _C  # noqa: F401

OPS = torch.ops.fastsft
GOLDEN = Path(__file__).parents[1] / "golden" / "adamw_8bit" / "steps.safetensors"
NAMES, STEPS, BLOCK = ("whole", "one", "part"), 8, 256
LEVELS = OPS.adamw8bit_levels()


@pytest.fixture(scope="module")
def recorded() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN)


def control_of(number: int, scale: float = 1.0) -> torch.Tensor:
    return torch.tensor([0.0, 0.0, scale, number], dtype=torch.float64)


class Parts:
    """A tensor that ranks hold ranges of, cut at `cuts`; each has the scales of the blocks it touches."""

    def __init__(self, whole: torch.Tensor, cuts: Sequence[int] = (), split: bool = False) -> None:
        self.flat = whole.clone().flatten()
        self.copy = reference.upper_half(self.flat) if split else None
        self.low = (self.flat.view(torch.int32) & 0xFFFF).to(torch.int16) if split else None
        ends = [0, *cuts, whole.numel()]
        self.ranges = list(pairwise(ends))
        self.codes = [torch.zeros(whole.numel(), dtype=torch.uint8) for _ in range(2)]
        self.scales = [
            [torch.zeros((end - 1) // BLOCK - begin // BLOCK + 1) for begin, end in self.ranges]
            for _ in range(2)
        ]

    def step(self, grad: torch.Tensor, number: int, scale: float = 1.0) -> None:
        flat, control = grad.flatten(), control_of(number, scale)
        edges = self.edges(flat, control)
        for part, (begin, end) in enumerate(self.ranges):
            master = self.flat if self.low is None else self.low
            OPS.adamw8bit(
                master[begin:end], None if self.copy is None else self.copy[begin:end], flat[begin:end],
                self.codes[0][begin:end], self.codes[1][begin:end], self.scales[0][part],
                self.scales[1][part], LEVELS, control, 1e-2, 0.9, 0.95, 1e-8, 0.1, begin,
                edges.get(begin // BLOCK), edges.get((end - 1) // BLOCK),
            )  # fmt: skip

    def edges(self, flat: torch.Tensor, control: torch.Tensor) -> dict[int, torch.Tensor]:
        """Of the blocks that are cut, by their numbers."""
        edges = {begin // BLOCK: torch.zeros(2) for begin, _ in self.ranges if begin % BLOCK}
        for part, (begin, end) in enumerate(self.ranges):
            for block in {begin // BLOCK, (end - 1) // BLOCK} & set(edges):
                here = slice(max(begin, block * BLOCK), min(end, (block + 1) * BLOCK))
                place = block - begin // BLOCK
                scales = [kept[part][place : place + 1] for kept in self.scales]
                codes = [kept[here] for kept in self.codes]
                OPS.adamw8bit_maxima(flat[here], *codes, *scales, LEVELS, control, 0.9, 0.95, edges[block])
        return edges


def test_levels_are_those_of_bitsandbytes(recorded: dict[str, torch.Tensor]) -> None:
    assert torch.equal(LEVELS[[0, 2]], recorded["levels"])
    middle = (LEVELS[[0, 2], 1:] + LEVELS[[0, 2], :-1]) / 2
    assert torch.equal(LEVELS[[1, 3], :-1], middle) and (LEVELS[[1, 3], -1] == math.inf).all()


@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_bitsandbytes(name: str, recorded: dict[str, torch.Tensor]) -> None:
    """A moment between two levels may take the other one where a product is rounded in another order."""
    ours = Parts(recorded[f"{name}.begin"])
    for step in range(STEPS):
        ours.step(recorded[f"{name}.{step}.grad"], step + 1)
        for which in (0, 1):
            codes = recorded[f"{name}.{step}.state{which + 1}"].flatten()
            differ = ours.codes[which].int() - codes.int()
            assert (differ != 0).float().mean() <= 1e-3 and differ.abs().max() <= 1
            scales = recorded[f"{name}.{step}.absmax{which + 1}"]
            torch.testing.assert_close(ours.scales[which][0], scales, rtol=1e-5, atol=0)
        expected = recorded[f"{name}.{step}.weight"].flatten()
        assert (ours.flat - expected).abs().max() <= 2e-3
        assert ((ours.flat - expected).norm() / expected.norm()).item() <= 1e-5


@pytest.mark.parametrize("cuts", [(128,), (300, 1000, 1100), (255, 256, 257), (640, 768, 896, 4095)])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_that_cut_blocks_have_the_bits_of_one(
    name: str, cuts: tuple[int, ...], recorded: dict[str, torch.Tensor]
) -> None:
    whole, cut = Parts(recorded[f"{name}.begin"]), Parts(recorded[f"{name}.begin"], cuts)
    for step in range(3):
        grad = recorded[f"{name}.{step}.grad"]
        whole.step(grad, step + 1)
        cut.step(grad, step + 1)
    assert torch.equal(whole.flat, cut.flat)
    assert all(torch.equal(a, b) for a, b in zip(whole.codes, cut.codes, strict=True))
    for which in (0, 1):
        for (begin, end), scales in zip(cut.ranges, cut.scales[which], strict=True):
            assert torch.equal(scales, whole.scales[which][0][begin // BLOCK : (end - 1) // BLOCK + 1])


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_bad_scale_changes_nothing(scale: float) -> None:
    parts = Parts(torch.randn(1000), split=True)
    parts.step(torch.randn(1000), 1)
    held = [parts.low, parts.copy, *parts.codes, *(scales[0] for scales in parts.scales)]
    before = [tensor.clone() for tensor in held]
    parts.step(torch.randn(1000), 2, scale)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))


def test_a_split_master_has_the_bits_of_a_whole_one() -> None:
    start = torch.randn(1500)
    whole, split = Parts(start), Parts(start, split=True)
    for number in range(1, 4):
        grad = torch.randn(1500).bfloat16()
        whole.step(grad, number)
        split.step(grad, number)
    assert torch.equal(split.low, (whole.flat.view(torch.int32) & 0xFFFF).to(torch.int16))
    assert torch.equal(split.copy, reference.upper_half(whole.flat))


def test_other_scales_are_refused() -> None:
    codes = [torch.zeros(300, dtype=torch.uint8) for _ in range(2)]
    with pytest.raises(ValueError, match=r"adamw8bit: absmax1 has shape \[3\], expected \[2\]"):
        OPS.adamw8bit(
            torch.zeros(300), None, torch.zeros(300), *codes, torch.zeros(3), torch.zeros(2), LEVELS,
            control_of(1), 1e-2, 0.9, 0.95, 1e-8, 0.1, 0, None, None,
        )  # fmt: skip
    with pytest.raises(ValueError, match="adamw8bit_maxima: 300 elements, expected those of one block"):
        scales = torch.zeros(1), torch.zeros(1)
        OPS.adamw8bit_maxima(
            torch.zeros(300), *codes, *scales, LEVELS, control_of(1), 0.9, 0.95, torch.zeros(2)
        )
