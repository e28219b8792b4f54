"""Data sets and arguments of scripts, as far as fastsft reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

# The end of a message about a token without a row of the embedding.
WITHOUT_ROW = (
    "call resize_token_embeddings(len(tokenizer)) of the model with transformers, save model and tokenizer "
    "into one directory, and name that; or do tokenizer and model not belong together?"
)


class SizedDataset(Protocol):
    """A data set with a length and rows by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Table(Protocol):
    """A datasets.Dataset; a name gives the column, a number the row."""

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
    """Data arguments with at least FastChat's fields; a script's class may have no others."""

    @property
    def data_path(self) -> str: ...
    @property
    def lazy_preprocess(self) -> bool: ...


class Fault(Protocol):
    """A fault of a record: `_C.DataFault`, or one found in Python."""

    @property
    def kind(self) -> str: ...
    @property
    def remark(self) -> str: ...
    @property
    def always_stops(self) -> bool: ...


def is_table(dataset: object) -> TypeGuard[Table]:
    """True for a datasets.Dataset; that library is not imported for this."""
    kind = type(dataset)
    return kind.__name__ == "Dataset" and kind.__module__ == "datasets.arrow_dataset"


def is_from_datasets(records: object) -> bool:
    """True for any data set of the library datasets, streamed or not."""
    return type(records).__module__.split(".")[0] == "datasets"


def is_sized(dataset: object) -> TypeGuard[SizedDataset]:
    """True for a data set with a length and rows by number."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def is_plain_list(value: object) -> TypeGuard[Sequence[Any]]:
    """True for a list or tuple, but not for derived classes."""
    return type(value) in (list, tuple)
