"""Two model directories, tensor by tensor; a few million values of each are in memory at a time."""

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
    """One tensor. largest: of the absolute differences, inf where one side alone is not a finite number."""

    name: str
    text: str
    largest: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """equal: how many have the same values, whatever their types; the others one by one."""

    equal: int
    differing: list[Difference]
    missing: list[Difference]

    @property
    def is_equal(self) -> bool:
        """True if both hold the same tensors with the same values."""
        return not self.differing and not self.missing

    def summary(self) -> str:
        """`290 tensors are equal, 2 differ (at most 0.0012, in ..), 1 is in one of the two alone`."""
        parts = [f"{self.equal} tensor{' is' if self.equal == 1 else 's are'} equal"]
        if self.differing:
            worst = max(self.differing, key=lambda each: each.largest)
            most = f" (at most {worst.largest:.3g}, in {worst.name})" if worst.largest else ""
            parts.append(f"{len(self.differing)} differ{'s' if len(self.differing) == 1 else ''}{most}")
        if self.missing:
            parts.append(f"{len(self.missing)} {'is' if len(self.missing) == 1 else 'are'} in one alone")
        return ", ".join(parts)


def compare(first: StoredWeights, second: StoredWeights) -> Iterator[Difference | int]:
    """A Difference for each tensor that is not equal, as it is found, and 1 for each that is."""
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
    """True for a head that holds the embedding's values: tied models are stored with it and without."""
    return name == HEAD and EMBEDDING in weights.tensors and weights.is_same(EMBEDDING, weights, HEAD)


def _of_values(name: str, first: StoredWeights, second: StoredWeights) -> Difference | None:
    count, largest = 0, 0.0
    for mine, theirs in zip(first.blocks(name), second.blocks(name), strict=True):
        if mine.dtype != theirs.dtype or bits_of(mine) != bits_of(theirs):
            others, apart = _distance(mine.double(), theirs.double())
            count, largest = count + others, max(largest, apart)
    if not count:
        return None
    entry, other = first.tensors[name], second.tensors[name]
    types = entry.dtype if entry.dtype == other.dtype else f"{entry.dtype} and {other.dtype}"
    text = f"max abs difference {largest:.3g}, {count:,} of {entry.count:,} values, {types}"
    return Difference(name, text, largest)


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> tuple[int, float]:
    """Values that differ, and the largest difference; not a number equals not a number."""
    other = (mine != theirs) & ~(mine.isnan() & theirs.isnan())
    if not bool(other.any()):
        return 0, 0.0
    apart = (mine - theirs)[other].abs().nan_to_num(nan=math.inf)
    return int(other.sum()), float(apart.max())


def summed(found: Iterator[Difference | int], say: Callable[[Difference], object]) -> Comparison:
    """All that `compare` yields; each difference is handed to `say` when it is found."""
    equal = 0
    differing: list[Difference] = []
    missing: list[Difference] = []
    for each in found:
        if isinstance(each, int):
            equal += each
            continue
        (missing if each.text.startswith("not in ") else differing).append(each)
        say(each)
    return Comparison(equal, differing, missing)


def open_weights(directory: Path) -> StoredWeights:
    """The weights of a directory, all of whose files can be read. ValueError naming the first fault."""
    if not directory.is_dir():
        raise ValueError(f"{directory}: expected a model directory or a checkpoint, got no directory")
    weights = StoredWeights(directory)
    if weights.problems:
        raise ValueError(weights.problems[0])
    return weights
