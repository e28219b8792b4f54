"""Keep labelled conversations as native rows, and make FastChat's padded tensors from these rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings
from fastsft.tokenizer.interfaces import ChatTokenizer

Tensors = dict[str, torch.Tensor]
COLUMNS = ("input_ids", "labels", "attention_mask")

_CHUNK = 1024  # most rows that are padded at once
_COMPARED_TOKENS = 1 << 20  # most tokens that are compared at once
# The type of an index that selects a single row or several rows, as in torch.
Index = int | slice | Sequence[int] | torch.Tensor


class _Labelled(Protocol):
    @property
    def dataset(self) -> _C.TokenDataset: ...
    @property
    def report(self) -> _C.DataReport: ...


class LabelledRows:
    """Labelled conversations: `native` (_C.TokenDataset, a row per conversation), `report` (_C.DataReport).

    width: model_max_length, the length of padded rows. pad_id: the padding id. mask_by_length: if True, the
    attention mask is True for all tokens of the row; otherwise, as in FastChat, it is True for all ids except
    `pad_id`. labelling: mask policy, template and stop token. label_alike: labels other conversations with
    the same settings and a given tokenizer; None if FastChat's labelling was used. eval_split: how the rows
    were divided into training and evaluation data; None if they were not. settings, data_format: how the
    rows of a file were labelled and read; None and "auto" for records of a script.
    """

    eval_split: dict[str, float] | None = None
    settings: LabelSettings | None = None
    data_format: str = "auto"

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
        self.native.masked_id = -1 if mask_by_length else pad_id  # attention ignores tokens with this id
        self.labelling = labelling or {}
        self.label_alike = label_alike

    def __deepcopy__(self, memo: dict[int, Any]) -> LabelledRows:
        """Copy the object. The copy has the same native rows and report, which are never edited."""
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

    def select(self, numbers: npt.NDArray[np.int64], split: dict[str, float]) -> LabelledRows:
        """Return the rows with these numbers. split: see `eval_split`."""
        other = copy.copy(self)
        other.native, other.eval_split = _C.TokenDataset(), split
        for row in numbers.tolist():
            other.native.append(self.native.ids(row), self.native.learned(row))
        other.native.masked_id = self.native.masked_id
        return other

    def tensors(self, begin: int, end: int) -> Tensors:
        """Return input_ids, labels (int64) and attention_mask (bool) of some rows, each [rows, width].

        begin, end: the first row, and the end of the rows (exclusive).
        """
        arrays = _C.padded_rows(
            self.native, begin, end, self.width, self.pad_id, mask_by_length=self.mask_by_length
        )
        return {name: torch.from_numpy(array) for name, array in zip(COLUMNS, arrays, strict=True)}

    def row(self, index: int) -> Tensors:
        """Return a single row, each tensor [width].

        A negative index counts from the end. IndexError if there is no such row.
        """
        size = len(self.native)
        at = index + size if index < 0 else index
        if not 0 <= at < size:
            raise IndexError(f"row {index} is not in a data set of {size} rows")
        return {key: value[0] for key, value in self.tensors(at, at + 1).items()}

    def are_rows(self, items: Mapping[int, object]) -> bool:
        """True if each item equals the row with its number in all values. items: items by row number."""
        size = len(self.native)
        if not all(type(row) is int and 0 <= row < size for row in items):
            return False
        return all(
            _is_item(items[row], {name: part[row - begin] for name, part in tensors.items()})
            for begin, end, tensors in self._runs(np.asarray(sorted(items), dtype=np.int64))
            for row in range(begin, end)
        )

    def are_alike(self, other: LabelledRows, numbers: npt.NDArray[np.int64]) -> bool:
        """True if this object and `other` have equal rows with these numbers (ascending)."""
        size = min(len(self.native), len(other.native))
        if not len(numbers):
            return True
        return int(numbers[-1]) < size and all(
            _is_item(other.tensors(begin, end), tensors) for begin, end, tensors in self._runs(numbers)
        )

    def are_parts(self, whole: Tensors, numbers: npt.NDArray[np.int64]) -> bool:
        """True if this object and the tensors `whole` have equal rows with these numbers (ascending)."""
        return all(
            _is_item({name: part[begin:end] for name, part in whole.items()}, tensors)
            for begin, end, tensors in self._runs(numbers)
        )

    def _runs(self, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, Tensors]]:
        """Yield (begin, end, tensors) for each run of consecutive row numbers. Long runs are divided."""
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
    """The tensors of all rows. A row is filled in at its first access, and accesses return views.

    An edit of an item, or of a tensor or array with the item's memory, therefore changes the data set.
    """

    def __init__(self, rows: LabelledRows) -> None:
        self._rows = rows
        size = (len(rows.native), rows.width)
        # The full size can be allocated, because memory pages that are never written use no memory.
        self._tensors = {
            name: torch.empty(size, dtype=torch.bool if name == "attention_mask" else torch.int64)
            for name in COLUMNS
        }
        self._made = np.zeros(len(rows.native), dtype=bool)

    def at(self, index: Index) -> Tensors:
        """Return each column, indexed with `index`. IndexError as in torch."""
        self._make(np.atleast_1d(np.arange(len(self._made))[index]) if _is_basic(index) else None)
        return {name: tensor[index] for name, tensor in self._tensors.items()}

    def whole(self) -> Tensors:
        """Return all rows, each tensor [rows, width]."""
        self._make(None)
        return self._tensors

    def is_untouched(self, rows: npt.ArrayLike | None = None) -> bool:
        """True if no script has changed a row that was accessed.

        rows: the numbers of the rows to compare; None for all rows.
        """
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
    """True for a number or a slice. Both have the same meaning in numpy and torch."""
    return isinstance(index, int | np.integer | slice) and not isinstance(index, bool)


class PackedRows(NamedTuple):
    """Native rows as arrays, the form in which they are pickled with their data set.

    Row i has the ids `ids[starts[i] : starts[i + 1]]` and the learned spans `spans[i]`. masked_id: as in
    TokenDataset.
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    spans: list[list[tuple[int, int]]]
    masked_id: int


def packed_rows(native: _C.TokenDataset) -> PackedRows:
    """Pack native rows that have only ids and learned spans."""
    rows = range(len(native))
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(native.lengths(), dtype=np.int64)])
    ids = [np.zeros(0, dtype=np.int32), *(native.ids(row) for row in rows)]
    return PackedRows(np.concatenate(ids), starts, [native.learned(row) for row in rows], native.masked_id)


def unpacked_rows(packed: PackedRows) -> _C.TokenDataset:
    """Return a TokenDataset with the rows of `packed`."""
    native = _C.TokenDataset()
    for (begin, end), spans in zip(pairwise(packed.starts), packed.spans, strict=True):
        native.append(packed.ids[begin:end], spans)
    native.masked_id = packed.masked_id
    return native
