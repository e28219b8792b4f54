"""Errors of weight sync: of arguments, checked before anything begins, and of saves, raised once."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import SupportsFloat, SupportsIndex


class ReplacedError(RuntimeError):
    """A save that a later one replaced before it began: no failure, and nothing was written."""


_MARK = "_fastsft_reported"


def raise_once(error: BaseException) -> None:
    """Raise `error`, unless it has been raised this way before."""
    if not getattr(error, _MARK, False):
        setattr(error, _MARK, True)
        raise error


_LONGEST_S = 1e9  # 30 years; what torch and locks take has limits


def whole_number(what: str, value: SupportsIndex) -> int:
    """A step, a version or a size as an `int`, also from NumPy's. ValueError for what is none, or below 0."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{what}: expected a whole number from 0 on, got {value!r}")
    return number


def seconds(what: str, value: SupportsFloat | str) -> float:
    """A deadline. ValueError for what is none, for 0 or less, and for one that never comes."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, str) or not 0 < number <= _LONGEST_S:
        raise ValueError(f"{what}: expected seconds, more than 0 and at most {_LONGEST_S:g}, got {value!r}")
    return number
