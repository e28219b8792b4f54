"""Labelled conversations: native rows, and FastChat's padded tensors of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C

Tensors = dict[str, torch.Tensor]
COLUMNS = ("input_ids", "labels", "attention_mask")

# So many rows that somebody has in hand are compared with the native ones; of more, the items are read.
_MAX_COMPARED = 32
_CHUNK = 1024  # rows that are padded at once


class LabelledRows:
    """Labelled conversations: `native` (_C.TokenDataset, a row a conversation), `report` (_C.DataReport).

    `width`: model_max_length, the padded length of a row. `pad_id`: what fills it up. `mask_by_length`: the
    attention mask covers the row's tokens, whatever their ids; else, as FastChat's, all ids but `pad_id`.
    `labelling`: policy, template and stop token. `label_alike`: labels other conversations, with a tokenizer,
    by the same settings; None for FastChat's.
    """

    def __init__(
        self,
        labelled: Any,
        width: int,
        pad_id: int,
        mask_by_length: bool = False,
        labelling: dict[str, Any] | None = None,
        label_alike: Callable[[Sequence[Any], Any], LabelledRows] | None = None,
    ) -> None:
        self.native = labelled.dataset
        self.report = labelled.report
        self.width = width
        self.pad_id = pad_id
        self.mask_by_length = mask_by_length
        self.native.masked_id = -1 if mask_by_length else pad_id  # what the rows' masks say
        self.labelling = labelling or {}
        self.label_alike = label_alike

    def tensors(self, begin: int, end: int) -> Tensors:
        """Rows [begin, end): input_ids and labels int64, attention_mask bool, each [end - begin, width]."""
        arrays = _C.padded_rows(
            self.native, begin, end, self.width, self.pad_id, mask_by_length=self.mask_by_length
        )
        return {name: torch.from_numpy(array) for name, array in zip(COLUMNS, arrays, strict=True)}

    def row(self, index: int) -> Tensors:
        """One row, each tensor [width]; a negative index counts back. IndexError for one outside."""
        size = len(self.native)
        at = index + size if index < 0 else index
        if not 0 <= at < size:
            raise IndexError(f"row {index} is not in a data set of {size} rows")
        return {key: value[0] for key, value in self.tensors(at, at + 1).items()}

    def is_row(self, index: Any, item: Any) -> bool:
        """Whether `item` is row `index`, value by value."""
        if not isinstance(index, int) or not isinstance(item, dict) or not 0 <= index < len(self.native):
            return False
        row = self.row(index)
        return row.keys() == item.keys() and all(
            isinstance(item[name], torch.Tensor) and torch.equal(row[name], item[name]) for name in row
        )


class RowTensors:
    """The tensors of all rows, each row made when it is first asked for; what is handed out are views.

    So that an edit of an item, of a tensor or of an array that shares its memory is one of the data set.
    """

    def __init__(self, rows: LabelledRows) -> None:
        self._rows = rows
        size = (len(rows.native), rows.width)
        # Pages that nobody writes to take no memory.
        self._tensors = {
            name: torch.empty(size, dtype=torch.bool if name == "attention_mask" else torch.int64)
            for name in COLUMNS
        }
        self._made = np.zeros(len(rows.native), dtype=bool)

    def at(self, index: Any) -> Tensors:
        """What indexing each tensor with `index` gives. IndexError as torch raises it."""
        self._make(np.atleast_1d(np.arange(len(self._made))[index]) if _is_basic(index) else None)
        return {name: tensor[index] for name, tensor in self._tensors.items()}

    def whole(self) -> Tensors:
        """All rows: each tensor [rows, width]."""
        self._make(None)
        return self._tensors

    def is_untouched(self) -> bool:
        """Whether the few rows that were handed out are as they were made; False for many."""
        handed = np.flatnonzero(self._made)
        return len(handed) <= _MAX_COMPARED and all(
            self._rows.is_row(int(row), {name: tensor[row] for name, tensor in self._tensors.items()})
            for row in handed
        )

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


def _is_basic(index: Any) -> bool:
    """An index that numpy and torch read alike: a number or a slice."""
    return isinstance(index, int | np.integer | slice) and not isinstance(index, bool)
