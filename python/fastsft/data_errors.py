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


def raise_first(faults: list[Any], source: str = "") -> None:
    """Raise the fault that FastChat would meet first: it renders every text before it tokenises one."""
    if not faults:
        return
    fault = next((f for f in faults if f.kind != "RuntimeError"), faults[0])
    more = f" ({len(faults)} records are at fault)" if len(faults) > 1 else ""
    raise _KINDS[fault.kind](f"{source}: {fault}{more}" if source else f"{fault}{more}")
