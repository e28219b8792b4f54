"""Faults in conversation data. Each is a ValueError and what FastChat's script raises for it."""

from __future__ import annotations

from typing import Any


class DataError(ValueError):
    """Conversations that cannot be trained on; the message says which record and what was expected."""


class DataKeyError(DataError, KeyError):
    """A missing field or an unknown role."""

    def __str__(self) -> str:
        return ValueError.__str__(self)


class DataIndexError(DataError, IndexError):
    """An empty conversation."""


class DataTypeError(DataError, TypeError):
    """A field of a kind that cannot be read."""


class DataAssertionError(DataError, AssertionError):
    """User and assistant do not alternate."""


class DataRuntimeError(DataError, RuntimeError):
    """A text that cannot be tokenised."""


_KINDS: dict[str, type[DataError]] = {
    "KeyError": DataKeyError,
    "IndexError": DataIndexError,
    "TypeError": DataTypeError,
    "AssertionError": DataAssertionError,
    "RuntimeError": DataRuntimeError,
    "ValueError": DataError,
}


def raise_first(faults: list[Any], num_faults: int | None = None) -> None:
    """Raise the fault that FastChat would meet first: it renders every text before it tokenises one.

    num_faults: of all records, when `faults` are only the first of them.
    """
    if not faults:
        return
    fault = next((f for f in faults if f.kind != "RuntimeError"), faults[0])
    count = len(faults) if num_faults is None else num_faults
    more = f" ({count} records are at fault; --report_bad FILE lists them)" if count > 1 else ""
    source = getattr(fault, "file", "")
    raise _KINDS[fault.kind](f"{source}: {fault}{more}" if source else f"{fault}{more}")
