"""Labelled conversations: native rows, and FastChat's padded tensors made from them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.tokenizer.interfaces import ChatTokenizer

Tensors = dict[str, torch.Tensor]
COLUMNS = ("input_ids", "labels", "attention_mask")

_CHUNK = 1024  # rows that are padded at once
_COMPARED_TOKENS = 1 << 20  # and tokens of rows that are compared at once


# Selects a row or several, as in torch.
Index = int | slice | Sequence[int] | torch.Tensor


class _Labelled(Protocol):
    @property
    def dataset(self) -> _C.TokenDataset: ...
    @property
    def report(self) -> _C.DataReport: ...


class LabelledRows:
    """Labelled conversations: `native` (_C.TokenDataset, one row a conversation), `report` (_C.DataReport).

    `width`: model_max_length, the padded row length. `pad_id`: fills rows up. `mask_by_length`: the attention
    mask covers the row's tokens, whatever their ids; otherwise, as in FastChat, all ids but `pad_id`.
    `labelling`: policy, template and stop token. `label_alike`: labels other conversations, with a tokenizer,
    by the same settings; None for FastChat's.
    """

    def __init__(
        self,
        labelled: _Labelled,
        width: int,
        pad_id: int,
        mask_by_length: bool = False,
        labelling: dict[str, Any] | None = None,
        label_alike: Callable[[Sequence[Any], ChatTokenizer], LabelledRows] | None = None,
    ) -> None:
        self.native = labelled.dataset
        self.report = labelled.report
        self.width = width
        self.pad_id = pad_id
        self.mask_by_length = mask_by_length
        self.native.masked_id = -1 if mask_by_length else pad_id  # the rows' masks follow this id
        self.labelling = labelling or {}
        self.label_alike = label_alike

    def __deepcopy__(self, memo: dict[int, Any]) -> LabelledRows:
        """Share the native rows and the report, which nobody edits."""
        other = copy.copy(self)
        other.labelling = copy.deepcopy(self.labelling, memo)
        return other

    def __copy__(self) -> LabelledRows:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        native, report = packed_rows(self.native), self.report.to_json()
        return {**self.__dict__, "native": native, "report": report}

    def __setstate__(self, state: dict[str, Any]) -> None:
        native, report = unpacked_rows(state["native"]), _C.DataReport.from_json(state["report"])
        self.__dict__.update({**state, "native": native, "report": report})

    def tensors(self, begin: int, end: int) -> Tensors:
        """Return rows [begin, end): input_ids and labels int64, attention_mask bool, each [rows, width]."""
        arrays = _C.padded_rows(
            self.native, begin, end, self.width, self.pad_id, mask_by_length=self.mask_by_length
        )
        return {name: torch.from_numpy(array) for name, array in zip(COLUMNS, arrays, strict=True)}

    def row(self, index: int) -> Tensors:
        """Return a row, each tensor [width]; a negative index counts back. IndexError if out of range."""
        size = len(self.native)
        at = index + size if index < 0 else index
        if not 0 <= at < size:
            raise IndexError(f"row {index} is not in a data set of {size} rows")
        return {key: value[0] for key, value in self.tensors(at, at + 1).items()}

    def are_rows(self, items: Mapping[int, object]) -> bool:
        """True if the items equal the rows of their numbers, value by value."""
        size = len(self.native)
        if not all(type(row) is int and 0 <= row < size for row in items):
            return False
        return all(
            _is_item(items[row], {name: part[row - begin] for name, part in tensors.items()})
            for begin, end, tensors in self._runs(np.asarray(sorted(items), dtype=np.int64))
            for row in range(begin, end)
        )

    def are_alike(self, other: LabelledRows, numbers: npt.NDArray[np.int64]) -> bool:
        """True if the rows `numbers` (ascending) equal those of `other`."""
        size = min(len(self.native), len(other.native))
        if not len(numbers):
            return True
        return int(numbers[-1]) < size and all(
            _is_item(other.tensors(begin, end), tensors) for begin, end, tensors in self._runs(numbers)
        )

    def are_parts(self, whole: Tensors, numbers: npt.NDArray[np.int64]) -> bool:
        """True if the rows `numbers` (ascending) of `whole` equal these rows."""
        return all(
            _is_item({name: part[begin:end] for name, part in whole.items()}, tensors)
            for begin, end, tensors in self._runs(numbers)
        )

    def _runs(self, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, Tensors]]:
        """Yield runs of consecutive rows, a few at a time: begin, end, and their tensors."""
        most = max(1, _COMPARED_TOKENS // self.width)
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else ():
            for first in range(0, len(run), most):
                begin, end = int(run[first]), int(run[min(first + most, len(run)) - 1]) + 1
                yield begin, end, self.tensors(begin, end)


def _is_item(item: object, row: Tensors) -> bool:
    return (
        isinstance(item, dict)
        and row.keys() == item.keys()
        and all(isinstance(item[name], torch.Tensor) and torch.equal(row[name], item[name]) for name in row)
    )


class RowTensors:
    """Tensors of all rows; a row is made when it is first accessed, and views are returned.

    Hence an edit of an item, or of a tensor or array that shares its memory, edits the data set.
    """

    def __init__(self, rows: LabelledRows) -> None:
        self._rows = rows
        size = (len(rows.native), rows.width)
        # Unwritten pages take no memory.
        self._tensors = {
            name: torch.empty(size, dtype=torch.bool if name == "attention_mask" else torch.int64)
            for name in COLUMNS
        }
        self._made = np.zeros(len(rows.native), dtype=bool)

    def at(self, index: Index) -> Tensors:
        """Return each tensor indexed with `index`. IndexError as torch raises it."""
        self._make(np.atleast_1d(np.arange(len(self._made))[index]) if _is_basic(index) else None)
        return {name: tensor[index] for name, tensor in self._tensors.items()}

    def whole(self) -> Tensors:
        """Return all rows: each tensor [rows, width]."""
        self._make(None)
        return self._tensors

    def is_untouched(self, rows: npt.ArrayLike | None = None) -> bool:
        """True if the accessed rows are unchanged. rows: those to compare; None: all."""
        handed = np.flatnonzero(self._made)
        if rows is not None:
            handed = np.intersect1d(handed, rows)
        return self._rows.are_parts(self._tensors, handed)

    def _make(self, rows: npt.NDArray[np.int64] | None) -> None:
        missing = np.flatnonzero(~self._made) if rows is None else rows[~self._made[rows]]
        missing = np.unique(missing)
        for part in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
            for first in range(0, len(part), _CHUNK):
                chunk = part[first : first + _CHUNK]
                begin, end = int(chunk[0]), int(chunk[-1]) + 1
                for name, tensor in self._rows.tensors(begin, end).items():
                    self._tensors[name][begin:end] = tensor
        self._made[missing] = True


def _is_basic(index: object) -> TypeGuard[int | slice]:
    """True for a number or a slice, which numpy and torch read alike."""
    return isinstance(index, int | np.integer | slice) and not isinstance(index, bool)


class PackedRows(NamedTuple):
    """Native rows as arrays, to be pickled with their data set; `spans`: the learned ones, by row.

    Row i has `ids` int32 from `starts[i]` to `starts[i + 1]`; `masked_id`: as in TokenDataset.
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    spans: list[list[tuple[int, int]]]
    masked_id: int


def packed_rows(native: _C.TokenDataset) -> PackedRows:
    """Pack a data set whose rows have only ids and learned spans."""
    rows = range(len(native))
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(native.lengths(), dtype=np.int64)])
    ids = [np.zeros(0, dtype=np.int32), *(native.ids(row) for row in rows)]
    return PackedRows(np.concatenate(ids), starts, [native.learned(row) for row in rows], native.masked_id)


def unpacked_rows(packed: PackedRows) -> _C.TokenDataset:
    """Return a TokenDataset with the same rows."""
    native = _C.TokenDataset()
    for (begin, end), spans in zip(pairwise(packed.starts), packed.spans, strict=True):
        native.append(packed.ids[begin:end], spans)
    native.masked_id = packed.masked_id
    return native
