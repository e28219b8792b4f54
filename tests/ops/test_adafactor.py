"""adafactor's four ops over parts of tensors, next to transformers.optimization.Adafactor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from transformers.optimization import Adafactor

import reference
from fastsft import _C  # noqa: F401

OPS = torch.ops.fastsft
RATE, DECAY = 1e-2, 0.1


class Parts:
    """A tensor that several ranks hold ranges of, cut at `cuts`; its state is whole."""

    def __init__(self, whole: torch.Tensor, cuts: Sequence[int] = (), split: bool = False) -> None:
        shape = whole.shape
        self.vector = whole.dim() < 2
        self.columns = shape[-1] if shape else 1
        self.rows = 1 if self.vector else shape[-2]
        self.flat = whole.clone().flatten()
        matrices = whole.numel() // (self.rows * self.columns)
        self.column = torch.zeros(matrices * self.columns)
        self.row = None if self.vector else torch.zeros(matrices * self.rows)
        ends = [0, *cuts, whole.numel()]
        self.ranges = list(pairwise(ends))
        self.copy = reference.upper_half(self.flat) if split else None
        self.low = (self.flat.view(torch.int32) & 0xFFFF).to(torch.int16) if split else None

    def step(self, grad: torch.Tensor, number: int, scale: float = 1.0) -> None:
        flat = grad.flatten()
        control = torch.tensor([0.0, 0.0, scale, number], dtype=torch.float64)
        columns, rows = (
            torch.zeros_like(self.column),
            None if self.row is None else torch.zeros_like(self.row),
        )
        norm = torch.zeros(1, dtype=torch.float64)
        for begin, end in self.ranges:
            OPS.adafactor_sums(flat[begin:end], control, rows, columns, begin, self.rows, self.columns)
        OPS.adafactor_moments(rows, columns, self.row, self.column, control, self.rows, self.columns)
        for begin, end in self.ranges:
            OPS.adafactor_norm(flat[begin:end], control, rows, columns, norm, begin, self.rows, self.columns)
        for begin, end in self.ranges:
            master = self.flat if self.low is None else self.low
            OPS.adafactor_update(
                master[begin:end], None if self.copy is None else self.copy[begin:end], flat[begin:end],
                control, rows, columns, norm, flat.numel(), RATE, DECAY, begin, self.rows, self.columns,
            )  # fmt: skip


SHAPES = [(), (1,), (37,), (2500,), (1, 1), (8, 300), (300, 8), (41, 1037), (3, 17, 29), (2, 3, 5, 70)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_equal_transformers(shape: tuple[int, ...]) -> None:
    """Whole, and cut in the middle of rows."""
    whole = torch.randn(shape)
    size = whole.numel()
    cuts = sorted({size // 3 + 1, size // 2 + 1, size - 1} & set(range(1, size)))
    ours = [Parts(whole), Parts(whole, cuts)]
    theirs = torch.nn.Parameter(whole.clone())
    optimizer = Adafactor([theirs], lr=RATE, weight_decay=DECAY, scale_parameter=False, relative_step=False)
    for number in range(1, 9):
        grad = torch.randn(shape) * 10.0 ** torch.randint(-3, 2, shape)
        theirs.grad = 0.5 * grad
        optimizer.step()
        for parts in ours:
            parts.step(grad, number, 0.5)
    state = optimizer.state[theirs]
    for parts in ours:
        torch.testing.assert_close(parts.flat.view(shape), theirs.data, rtol=2e-6, atol=1e-6)
        column = state["exp_avg_sq" if parts.vector else "exp_avg_sq_col"]
        torch.testing.assert_close(parts.column, column.flatten(), rtol=1e-5, atol=0)
        if parts.row is not None:
            torch.testing.assert_close(parts.row, state["exp_avg_sq_row"].flatten(), rtol=1e-5, atol=0)


def test_gradients_of_zero_change_nothing_but_by_decay() -> None:
    parts = Parts(torch.randn(5, 7))
    before = parts.flat.clone()
    parts.step(torch.zeros(5, 7), 1)
    torch.testing.assert_close(parts.flat, before * (1 - RATE * DECAY))


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_bad_scale_changes_nothing(scale: float) -> None:
    parts = Parts(torch.randn(12, 9), split=True)
    parts.step(torch.randn(12, 9), 1)
    held = [parts.low, parts.copy, parts.row, parts.column]
    before = [tensor.clone() for tensor in held]
    parts.step(torch.randn(12, 9), 2, scale)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))


def test_a_split_master_has_the_bits_of_a_whole_one() -> None:
    start = torch.randn(40, 70)
    whole, split = Parts(start), Parts(start, split=True)
    for number in range(1, 4):
        grad = torch.randn(40, 70).bfloat16()
        whole.step(grad, number)
        split.step(grad, number)
    assert torch.equal(split.low, (whole.flat.view(torch.int32) & 0xFFFF).to(torch.int16))
    assert torch.equal(split.copy, reference.upper_half(whole.flat))


def test_sums_do_not_depend_on_threads() -> None:
    grad, threads, found = torch.randn(900, 700), torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            parts = Parts(torch.zeros(900, 700))
            parts.step(grad, 1)
            found.append((parts.row, parts.column, parts.flat))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("first", "rows", "columns", "message"),
    [
        (7, 3, 4, "elements from 7 to 13 of a tensor with 12"),
        (0, 0, 4, "expected rows and columns, got 0 and 4"),
        (0, 2, 4, "row has shape"),
    ],
)
def test_other_places_are_refused(first: int, rows: int, columns: int, message: str) -> None:
    control = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        OPS.adafactor_sums(torch.zeros(6), control, torch.zeros(3), torch.zeros(4), first, rows, columns)
    with pytest.raises(ValueError, match="a vector has one row"):
        OPS.adafactor_sums(torch.zeros(6), control, None, torch.zeros(4), 0, 3, 4)
