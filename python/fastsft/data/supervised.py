"""Define FastChat's `preprocess` and its two data sets.

Rules and shapes are in docs/spec/fastchat_labels.md, sections 2 and 3. C++ computes the labels. Padded
tensors are made only on access.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, SupportsInt, cast

import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from fastsft import _C
from fastsft.data.conversation_labels import label_sources, learned_sources, sources_of
from fastsft.data.labelled_rows import COLUMNS, Index, LabelledRows, RowTensors, Tensors
from fastsft.data.lazy_rows import LazyRows, RowCache
from fastsft.runtime.messages import rank0_print
from fastsft.script_names.module_names import code_of, current, is_rebound, remember_own
from fastsft.tokenizer.interfaces import ChatTokenizer
from fastsft.tokenizer.state import is_comparable

IGNORE_TOKEN_ID = -100


def preprocess(sources: Sequence[Any], tokenizer: ChatTokenizer) -> Tensors:
    """Tokenize and label conversations (lists of messages) exactly as FastChat does.

    tokenizer: a fastsft Tokenizer or a Hugging Face tokenizer object. The result has `input_ids` and `labels`
    (int64) and `attention_mask` (bool), each [len(sources), tokenizer.model_max_length]. Labels are not
    shifted; tokens that are not learned have the label -100. Rank 0 prints FastChat's line for each dropped
    conversation. DataError if a conversation is faulty; its class is also derived from KeyError, IndexError,
    TypeError, AssertionError or RuntimeError, whichever FastChat would raise. ValueError if the tokenizer
    pads or truncates on the left, or has no pad token.
    """
    rows = label_sources(sources, tokenizer)
    for line in rows.report.warnings:
        say(line)
    return rows.tensors(0, len(rows.native))


class SupervisedDataset(Dataset[Tensors]):
    """A data set of the conversations in `raw_data` (records with "conversations"), labelled when it is made.

    An item has `input_ids`, `labels` (int64) and `attention_mask` (bool), each [model_max_length]. The
    attributes with these names contain all rows. They are made at their first access. As in FastChat, a
    script may edit or replace them, which changes the items, but not `native` and `report` (LabelledRows).
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    attention_mask: torch.Tensor

    def __init__(self, raw_data: Sequence[Any], tokenizer: ChatTokenizer) -> None:
        super().__init__()
        say("Formatting inputs...")
        if is_rebound("preprocess"):
            self._hold(script_columns(current("preprocess"), sources_of(raw_data), tokenizer))
            return
        self._rows = label_sources(learned_sources(raw_data), tokenizer)
        for line in self._rows.report.warnings:
            say(line)
        if type(self) is not SupervisedDataset:  # a derived class may define properties with these names
            self._hold(self._rows.tensors(0, len(self._rows.native)))

    def _hold(self, columns: Tensors) -> None:
        for name in COLUMNS:
            setattr(self, name, columns[name])

    @classmethod
    def from_rows(cls, rows: LabelledRows) -> SupervisedDataset:
        """Return a data set of rows that have already been labelled."""
        dataset = cls.__new__(cls)
        dataset._rows = rows
        return dataset

    @property
    def native(self) -> _C.TokenDataset | None:
        """The native rows. If a script's own `preprocess` made the rows, this is None.

        In that case `report` is None, too, and `labelling` is empty.
        """
        return self._rows.native if "_rows" in self.__dict__ else None

    @property
    def report(self) -> _C.DataReport | None:
        return self._rows.report if "_rows" in self.__dict__ else None

    @property
    def labelling(self) -> dict[str, Any]:
        return self._rows.labelling if "_rows" in self.__dict__ else {}

    @property
    def labelled_rows(self) -> LabelledRows | None:
        """The labelled rows; None if a script's own `preprocess` made the rows."""
        return self.__dict__.get("_rows")

    @property
    def eval_split(self) -> dict[str, float] | None:
        """How --eval_split divided the data; None without it."""
        return self._rows.eval_split if "_rows" in self.__dict__ else None

    @cached_property
    def _tensors(self) -> RowTensors:
        return RowTensors(self._rows)

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in COLUMNS or "_rows" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        column = self.__dict__[name] = self._tensors.whole()[name]
        return column

    def __len__(self) -> int:
        return len(self.input_ids) if "input_ids" in self.__dict__ else len(self._rows.native)

    def __getitem__(self, i: Index) -> Tensors:
        if "_rows" in self.__dict__ and not any(name in self.__dict__ for name in COLUMNS):
            return self._tensors.at(i)
        return {name: getattr(self, name)[i] for name in COLUMNS}

    def untouched_rows(self, *, label: bool = True) -> _C.TokenDataset | None:
        """Return the native rows if the items still equal them; None if class, methods or contents changed.

        label: ignored; see LazySupervisedDataset.
        """
        return self._rows.native if self.still_has(None) else None

    def still_has(self, rows: npt.ArrayLike | None) -> bool:
        """True if the items equal the native rows.

        rows: the numbers of the rows to compare; None for all rows.
        """
        is_own = type(self) is SupervisedDataset and _has_own_methods(self)
        if not is_own or any(name in self.__dict__ for name in COLUMNS):
            return False
        made = self.__dict__.get("_tensors")
        return made is None or made.is_untouched(rows)


class LazySupervisedDataset(Dataset[Tensors]):
    """A data set with the same items as SupervisedDataset, each labelled at its first access.

    `cached_data_dict` keeps the items. As in FastChat, a script may edit or replace `raw_data`, `tokenizer`
    and `cached_data_dict`, which changes the items. An access to `native` or `report` labels all records,
    once.
    """

    raw_data: Sequence[Any]

    def __init__(self, raw_data: Sequence[Any], tokenizer: ChatTokenizer) -> None:
        super().__init__()
        say("Formatting inputs...Skip in lazy mode")
        self.tokenizer = tokenizer
        self.raw_data = raw_data
        self.cached_data_dict: dict[int, Tensors] = RowCache()

    @classmethod
    def from_rows(
        cls, rows: LabelledRows, tokenizer: ChatTokenizer, read_raw_data: Callable[[], Sequence[Any]]
    ) -> LazySupervisedDataset:
        """Return a data set of labelled rows. read_raw_data: reads `raw_data` at its first access."""
        dataset = cls((), tokenizer)
        del dataset.raw_data
        dataset._lazy = LazyRows(rows, tokenizer, read_raw_data)
        return dataset

    @cached_property
    def _lazy(self) -> LazyRows:
        rows = label_sources(learned_sources(self.raw_data), self.tokenizer)
        return LazyRows.from_records(rows, self.tokenizer, self.raw_data)

    @property
    def native(self) -> _C.TokenDataset | None:
        """The native rows. If a script has its own `preprocess`, this is None.

        In that case `report` is None, too, and `labelling` is empty.
        """
        return None if is_rebound("preprocess") else self._lazy.rows.native

    @property
    def report(self) -> _C.DataReport | None:
        return None if is_rebound("preprocess") else self._lazy.rows.report

    @property
    def labelling(self) -> dict[str, Any]:
        return {} if is_rebound("preprocess") else self._lazy.rows.labelling

    @property
    def labelled_rows(self) -> LabelledRows | None:
        """The labelled rows; None if a script has its own `preprocess`."""
        return None if is_rebound("preprocess") else self._lazy.rows

    def __getattr__(self, name: str) -> Sequence[Any]:
        if name != "raw_data" or "_lazy" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.raw_data = self._lazy.read_raw_data()
        return self.raw_data

    def __len__(self) -> int:
        return len(self.raw_data) if "raw_data" in self.__dict__ else len(self._lazy.rows.native)

    def __getitem__(self, i: int) -> Tensors:
        if i not in self.cached_data_dict:
            self.cached_data_dict[i] = self._item(i)
        return self.cached_data_dict[i]

    def _item(self, i: int) -> Tensors:
        if is_rebound("preprocess"):
            called = script_columns(current("preprocess"), sources_of([self.raw_data[i]]), self.tokenizer)
            return {key: value[0] for key, value in called.items()}
        lazy = self.__dict__.get("_lazy")
        if lazy is not None and "raw_data" not in self.__dict__ and lazy.has_tokenizer(self.tokenizer):
            return cast(LazyRows, lazy).rows.row(i)
        alike = None if lazy is None else lazy.rows.label_alike
        sources = learned_sources([self.raw_data[i]])
        if alike is not None:
            return cast(LabelledRows, alike(sources, self.tokenizer)).row(0)
        return {key: value[0] for key, value in preprocess(sources, self.tokenizer).items()}

    def untouched_rows(self, *, label: bool = True) -> _C.TokenDataset | None:
        """Return the native rows if the items equal them; None if class, methods or contents changed.

        label: if records have changed, label all records again instead of returning None. Items that were
        already read are kept.
        """
        if not self._is_read_by_own_code() or not is_comparable(self.tokenizer):
            return None
        lazy = self.__dict__.get("_lazy")
        if lazy is None or not lazy.is_of(self):
            if not label or type(self.raw_data) not in (list, tuple):
                return None
            alike = label_sources if lazy is None else lazy.rows.label_alike or label_sources
            lazy = LazyRows.from_records(
                alike(learned_sources(self.raw_data), self.tokenizer), self.tokenizer, self.raw_data
            )
            self._lazy = lazy
        if lazy.can_change_unseen or not lazy.are_rows(self.cached_data_dict):
            return None
        if isinstance(self.cached_data_dict, RowCache):
            self.cached_data_dict.move(lazy.rows)
        return lazy.rows.native

    def still_has(self, rows: Collection[int]) -> bool:
        """True if the items equal the native rows. rows: the numbers of the rows to compare."""
        lazy = self.__dict__.get("_lazy")
        return (
            lazy is not None
            and self._is_read_by_own_code()
            and lazy.is_of(self, rows)
            and lazy.are_rows(self.cached_data_dict, rows)
        )

    def note_read(self, rows: Iterable[SupportsInt]) -> None:
        """Record that these native rows count as read, as if a loader had read them.

        Later changes of their records then have no effect on them.
        """
        cache = self.cached_data_dict
        if isinstance(cache, RowCache):
            cache.note(self._lazy.rows, rows)
            return
        for row in map(int, rows):
            if row not in cache:
                cache[row] = self._lazy.rows.row(row)

    def _is_read_by_own_code(self) -> bool:
        is_own = type(self) is LazySupervisedDataset and _has_own_methods(self)
        return is_own and not is_rebound("preprocess")


_READ_BY = ("__getitem__", "__len__", "__getattr__", "__getattribute__", "__getitems__")
_OWN_METHODS = {
    kind: {name: getattr(kind, name, None) for name in _READ_BY}
    for kind in (SupervisedDataset, LazySupervisedDataset)
}
_OWN_CODE = {
    kind: {name: code_of(method) for name, method in methods.items()}
    for kind, methods in _OWN_METHODS.items()
}


def _has_own_methods(dataset: SupervisedDataset | LazySupervisedDataset) -> bool:
    """True if no script has replaced a method by which a data loader reads `dataset`."""
    own = _OWN_METHODS[type(dataset)]
    code = _OWN_CODE[type(dataset)]
    replaced = any(
        getattr(type(dataset), name, None) is not method or code_of(method) != code[name]
        for name, method in own.items()
    )
    return not replaced and "__getitems__" not in dataset.__dict__


def say(*words: object) -> None:
    """Print one of FastChat's lines with `rank0_print`, or with a script's function of that name."""
    current("rank0_print")(*words)


remember_own(
    preprocess=preprocess,
    SupervisedDataset=SupervisedDataset,
    LazySupervisedDataset=LazySupervisedDataset,
    rank0_print=rank0_print,
)


_NAMES = ("input_ids", "labels", "attention_mask")


def script_columns(
    preprocess: Callable[..., object], sources: Sequence[Any], tokenizer: object
) -> dict[str, Any]:
    """Call a script's `preprocess` for `sources`. Return its `input_ids`, `labels` and `attention_mask`."""
    result = preprocess(sources, tokenizer)
    if not isinstance(result, Mapping) or not set(_NAMES) <= set(result):
        got = ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        name = getattr(preprocess, "__qualname__", type(preprocess).__name__)
        raise ValueError(
            f"preprocess was set by the script to {name}, which returned {got}; expected a dictionary with "
            f"{', '.join(_NAMES)}, a row for each conversation"
        )
    return {name: result[name] for name in _NAMES}
