"""Protocols with the attributes that fastsft reads of a script's data sets and arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

# The end of error messages about a token id that has no row in the embedding.
WITHOUT_ROW = (
    "call resize_token_embeddings(len(tokenizer)) of the model with transformers, save model and tokenizer "
    "into one directory, and name that; or do tokenizer and model not belong together?"
)


class SizedDataset(Protocol):
    """A data set that has a length and returns rows by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Table(Protocol):
    """A datasets.Dataset: `table[name]` is a column, `table[number]` a row."""

    @property
    def column_names(self) -> list[str]: ...
    @property
    def format(self) -> Mapping[str, object]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: int | str, /) -> Any: ...
    def with_format(self, type: str | None) -> Table: ...
    def remove_columns(self, column_names: list[str]) -> Table: ...


class ScriptDataArguments(Protocol):
    """Data arguments that have at least FastChat's fields."""

    @property
    def data_path(self) -> str: ...
    @property
    def lazy_preprocess(self) -> bool: ...


class Fault(Protocol):
    """An error in a record: a `_C.RecordError`, or an error that Python code has found."""

    @property
    def kind(self) -> str: ...
    @property
    def remark(self) -> str: ...
    @property
    def always_stops(self) -> bool: ...


def is_table(dataset: object) -> TypeGuard[Table]:
    """True for a datasets.Dataset. Names are compared, so that the library need not be imported."""
    kind = type(dataset)
    return kind.__name__ == "Dataset" and kind.__module__ == "datasets.arrow_dataset"


def is_from_datasets(records: object) -> bool:
    """True for any data set of the library datasets, including streamed ones."""
    return type(records).__module__.split(".")[0] == "datasets"


def is_sized(dataset: object) -> TypeGuard[SizedDataset]:
    """True if `dataset` has a length and can be indexed."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def is_plain_list(value: object) -> TypeGuard[Sequence[Any]]:
    """True for a list or tuple, but not for an object of a derived class."""
    return type(value) in (list, tuple)
