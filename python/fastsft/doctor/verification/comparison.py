"""Compares two model directories tensor by tensor; only a few million values are in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.stored_weights import DTYPES, EMBEDDING, HEAD, StoredWeights, bits_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Difference:
    """Difference between two tensors of the same name.

    largest: the largest absolute difference; inf if only one of two values is finite, or shapes differ.
    """

    name: str
    text: str
    largest: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """Result of comparing two directories.

    equal: how many tensors have equal values, whatever their dtypes. missing: tensors in only one directory.
    """

    equal: int
    differing: list[Difference]
    missing: list[Difference]

    @property
    def is_equal(self) -> bool:
        """True if both directories have the same tensors with the same values."""
        return not self.differing and not self.missing

    def summary(self) -> str:
        """Return a summary like `290 tensors are equal, 2 differ (at most 0.0012, in ..)`."""
        parts = [f"{self.equal} tensor{' is' if self.equal == 1 else 's are'} equal"]
        if self.differing:
            worst = max(self.differing, key=lambda difference: difference.largest)
            most = f" (at most {worst.largest:.3g}, in {worst.name})" if worst.largest else ""
            parts.append(f"{len(self.differing)} differ{'s' if len(self.differing) == 1 else ''}{most}")
        if self.missing:
            parts.append(f"{len(self.missing)} {'is' if len(self.missing) == 1 else 'are'} in one alone")
        return ", ".join(parts)


def compare(first: StoredWeights, second: StoredWeights) -> Iterator[Difference | int]:
    """Yield a Difference for each tensor that differs, and 1 for each tensor that is equal."""
    for name, entry in first.tensors.items():
        other = second.tensors.get(name)
        if other is None and _is_second_copy(name, first):
            continue
        if other is None:
            yield Difference(name, f"not in {second.directory}")
        elif entry.shape != other.shape:
            yield Difference(name, f"shape {list(entry.shape)} and {list(other.shape)}", math.inf)
        elif entry.dtype not in DTYPES or other.dtype not in DTYPES:
            yield Difference(name, f"type {entry.dtype} and {other.dtype}", math.inf)
        else:
            yield _of_values(name, first, second) or 1
    for name in second.tensors:
        if name not in first.tensors and not _is_second_copy(name, second):
            yield Difference(name, f"not in {first.directory}")


def _is_second_copy(name: str, weights: StoredWeights) -> bool:
    """True if `name` is a head equal to the embedding, which files may leave out if weights are tied."""
    return name == HEAD and EMBEDDING in weights.tensors and weights.is_same(EMBEDDING, weights, HEAD)


def _of_values(name: str, first: StoredWeights, second: StoredWeights) -> Difference | None:
    count, largest = 0, 0.0
    for left, right in zip(first.blocks(name), second.blocks(name), strict=True):
        if left.dtype != right.dtype or bits_of(left) != bits_of(right):
            others, apart = _distance(left.double(), right.double())
            count, largest = count + others, max(largest, apart)
    if not count:
        return None
    entry, other = first.tensors[name], second.tensors[name]
    types = entry.dtype if entry.dtype == other.dtype else f"{entry.dtype} and {other.dtype}"
    text = f"max abs difference {largest:.3g}, {count:,} of {entry.count:,} values, {types}"
    return Difference(name, text, largest)


def _distance(left: torch.Tensor, right: torch.Tensor) -> tuple[int, float]:
    """Return how many values differ, and the largest absolute difference; two NaN count as equal."""
    other = (left != right) & ~(left.isnan() & right.isnan())
    if not bool(other.any()):
        return 0, 0.0
    apart = (left - right)[other].abs().nan_to_num(nan=math.inf)
    return int(other.sum()), float(apart.max())


def summed(results: Iterator[Difference | int], report: Callable[[Difference], object]) -> Comparison:
    """Collect the results from `compare`; call `report` at once with each difference."""
    equal = 0
    differing: list[Difference] = []
    missing: list[Difference] = []
    for result in results:
        if isinstance(result, int):
            equal += result
            continue
        (missing if result.text.startswith("not in ") else differing).append(result)
        report(result)
    return Comparison(equal, differing, missing)


def open_weights(directory: Path) -> StoredWeights:
    """Open the weights in a directory. ValueError if a file is unreadable."""
    if not directory.is_dir():
        raise ValueError(f"{directory}: expected a model directory or a checkpoint, got no directory")
    weights = StoredWeights(directory)
    if weights.problems:
        raise ValueError(weights.problems[0])
    return weights
