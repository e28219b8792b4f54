"""Errors of weight sync: of arguments, checked before anything begins, and of saves, raised once."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import SupportsIndex


class ReplacedError(RuntimeError):
    """A save that a later one replaced before it began: no failure, and nothing was written."""


_MARK = "_fastsft_reported"


def raise_once(error: BaseException) -> None:
    """Raise `error`, unless it has been raised this way before."""
    if not getattr(error, _MARK, False):
        setattr(error, _MARK, True)
        raise error


def whole_number(what: str, value: SupportsIndex) -> int:
    """A step, a version or a size as an `int`, also from NumPy's. ValueError for what is none, or below 0."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{what}: expected a whole number from 0 on, got {value!r}")
    return number


_MOST_LISTED = 5


def some(found: Sequence[str], between: str = ", ") -> str:
    """The first ones of a list that may be of any length, and how many more there are."""
    more = len(found) - _MOST_LISTED
    return between.join(found[:_MOST_LISTED]) + (f"{between}and {more} more" if more > 0 else "")


# Texts of gloo and of torch's stores, of which the first line names a source file of theirs.
_REASONS = (
    (r"closed by peer|reset by peer|broken pipe|connection refused|pair closure|writev|readv",
     "the connection to another member is closed: its process has ended, or it has given this group up"),
    (r"nbytes|preamble", "another member sends a tensor of another size: the plans differ"),
    (r"timed out|timeout", "another member gave no sign in time"),
    (r"abort|cancel|shut ?down", "the group was given up, here or elsewhere"),
)  # fmt: skip
_ORIGIN = re.compile(r"^(Gloo \w+ failed with )?(\[[^\]]*\.(cc|cpp|h):\d+\]\s*)?")


def plain_reason(error: BaseException) -> str:
    """Why an operation of a group failed, in words of ours if the backend's are known."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    if first.startswith("shared memory:"):  # our own
        return first
    for pattern, words in _REASONS:
        if re.search(pattern, first, re.IGNORECASE):
            return words
    return _ORIGIN.sub("", first)
