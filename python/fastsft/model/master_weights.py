"""MasterWeights: a model's tensors in float32, read from a checkpoint's optimizer files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.stored_weights import UnitLayout, as_tensor

if TYPE_CHECKING:
    import torch

_FILES = "optimizer-rank-*-of-*.safetensors"
Part = tuple[int, int, Path]  # elements [begin, end) of a unit, and the file that holds them


def has_master_weights(directory: Path) -> bool:
    """Return True if a checkpoint has optimizer files."""
    return any(directory.glob(_FILES))


class MasterWeights:
    """Reads one tensor at a time. Only the last tensor's unit is in memory.

    layouts: from CausalLM's `unit_layouts`. ValueError unless the files hold this model's whole
    state.
    """

    def __init__(self, directory: Path, layouts: Iterable[UnitLayout]) -> None:
        self._parts: dict[str, list[Part]] = {}
        self._tensors: dict[str, tuple[str, int, list[int]]] = {}  # unit, first element, shape
        hashes: dict[str, str | None] = {}
        sizes: dict[str, int] = {}
        for unit, digest, size, tensors in layouts:
            hashes[unit], sizes[unit] = digest, size
            self._parts[unit] = []
            self._tensors.update({name: (unit, offset, shape) for name, shape, offset in tensors})
        for path in sorted(directory.glob(_FILES)):
            for unit, digest, begin, end in _units(path):
                if unit not in hashes or hashes[unit] not in (digest, None):
                    raise ValueError(f"{path}: its unit {unit} is of another model than config.json")
                self._parts[unit].append((begin, end, path))
        for unit, size in sizes.items():
            _check_whole(directory, unit, self._parts[unit], size)
        self._unit: tuple[str, torch.Tensor] | None = None  # the unit read last

    def __contains__(self, name: str) -> bool:
        """Return True if the optimizer updates the tensor, so that the files hold its master weight."""
        return name in self._tensors

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor in float32."""
        unit, offset, shape = self._tensors[name]
        if self._unit is None or self._unit[0] != unit:
            self._unit = None  # frees the memory before the next unit is read
            self._unit = unit, self._read_unit(unit)
        return self._unit[1][offset : offset + math.prod(shape)].reshape(shape)

    def _read_unit(self, unit: str) -> torch.Tensor:
        import torch

        from fastsft import _C

        parts = []
        for begin, end, path in sorted(self._parts[unit]):
            values = as_tensor(_C.SafetensorsReader(str(path)).bytes(f"{unit}.master"), "F32")
            if values.numel() != end - begin:
                raise ValueError(
                    f"{path}: {unit}.master: expected {end - begin} values, got {values.numel()}"
                )
            parts.append(values)
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def _check_whole(directory: Path, unit: str, parts: list[Part], size: int) -> None:
    """Raise ValueError unless the parts cover the unit exactly once. Padding may follow."""
    end = 0
    for begin, last, _ in sorted(parts):
        if begin != end or last < begin:
            break
        end = last
    else:
        if end >= size:
            return
    raise ValueError(
        f"{directory}: the optimizer's files have not all of {unit}; a file is missing or damaged"
    )


def _units(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield (name, hash, begin, end) of each unit in an optimizer file, from the file's metadata."""
    from fastsft import _C

    text = _C.SafetensorsReader(str(path)).metadata.get("fastsft", "")
    try:
        for unit in json.loads(text)["units"]:
            if unit["end"] > unit["begin"]:
                yield str(unit["name"]), str(unit["hash"]), int(unit["begin"]), int(unit["end"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError(f"{path}: not an optimizer file of fastsft, or a damaged one") from None
