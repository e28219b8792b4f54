"""Safetensors files of a save, checked whole before memory is taken for a tensor of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from fastsft import _C
from fastsft.weight_sync.files import dtype_of

if TYPE_CHECKING:
    from fastsft.ranks.exchange import Message


class StoredFile:
    """A file whose header is strict JSON without duplicates and describes all of its bytes.

    ValueError or RuntimeError, naming the path, for any other. Its tensors are views of the mapped file.
    """

    def __init__(self, path: Path) -> None:
        reader = _C.SafetensorsReader(str(path))
        self.path, self.metadata = path, dict(reader.metadata)
        self.entries = {entry.name: entry for entry in reader.tensors}
        size = path.stat().st_size
        self._data = size - max((entry.end for entry in reader.tensors), default=0)
        self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)

    def tensor(self, name: str) -> torch.Tensor:
        """Its values, to be copied: their memory is the file."""
        entry = self.entries[name]
        dtype = dtype_of(entry.dtype, f"{self.path}: {name}")
        data = self._bytes[self._data + entry.begin : self._data + entry.end]
        aligned = data if data.storage_offset() % dtype.itemsize == 0 else data.clone()
        return aligned.view(dtype).view(entry.shape)


@dataclass
class _Part:
    """Rows of a tensor in one file."""

    file: StoredFile
    begin: int
    count: int


class StoredTensor:
    """A tensor whose rows are in the files of several ranks, or that each rank has whole."""

    def __init__(self, name: str, files: Sequence[StoredFile], places: Sequence[Message]) -> None:
        self._name = name
        self._shape: list[int] | None = None  # None: each rank has it whole
        self._parts: list[_Part] = []
        self._next = 0
        first = files[0].entries[name]
        for number, (file, place) in enumerate(zip(files, (each[name] for each in places), strict=True)):
            entry, where = file.entries[name], f"{file.path}: {name}"
            if entry.dtype != first.dtype:
                raise ValueError(f"{where}: expected {first.dtype}, as in {files[0].path}, got {entry.dtype}")
            if place is None:
                self._add_whole(number, file, entry.shape, first.shape, where)
            else:
                self._add_rows(number, file, entry.shape, place, where)
        if self._shape is not None and self._next != self._shape[0]:
            folder = files[0].path.parent
            raise ValueError(f"{folder}: {name}: expected {self._shape[0]} rows, got {self._next}")

    def read(self) -> torch.Tensor:
        """Its values, in memory of its own."""
        if self._shape is None:
            return self._parts[0].file.tensor(self._name).clone()
        whole = self._parts[0].file.tensor(self._name).new_empty(self._shape)
        for part in self._parts:
            whole[part.begin : part.begin + part.count] = part.file.tensor(self._name)
        return whole

    def _add_whole(
        self, number: int, file: StoredFile, shape: list[int], first: list[int], where: str
    ) -> None:
        if self._shape is not None or shape != first:
            expected = f"rows of {self._shape}" if self._shape is not None else f"all of {first}"
            raise ValueError(f"{where}: expected {expected}, as the ranks before, got all of {shape}")
        if number == 0:
            self._parts.append(_Part(file, 0, 0))

    def _add_rows(self, number: int, file: StoredFile, rows: list[int], place: object, where: str) -> None:
        """Rows must follow those of the files before."""
        begin, shape = _place(place, where)
        known = shape if number == 0 else self._shape
        fits = shape == known and len(rows) == len(shape) and rows[1:] == shape[1:]
        if not fits or (rows[0] and (begin != self._next or begin + rows[0] > shape[0])):
            got = f"rows {begin} and more of shape {rows}"
            raise ValueError(f"{where}: expected what follows {self._next} rows of {known}, got {got}")
        self._shape = shape
        self._parts.append(_Part(file, begin, rows[0]))
        self._next += rows[0]


def _place(place: object, where: str) -> tuple[int, list[int]]:
    """First row, and shape of the whole tensor."""
    begin, shape = cast("tuple[Any, Any]", place if isinstance(place, list) and len(place) == 2 else (0, 0))
    if isinstance(shape, list) and shape and all(map(_is_size, [begin, *shape])):
        return begin, shape
    raise ValueError(f"{where}: expected [first row, shape] as its place, got {str(place)[:80]}")


def _is_size(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 48
