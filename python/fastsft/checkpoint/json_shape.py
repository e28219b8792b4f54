"""Check that a value read from JSON has the types that its reader counts on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

_MOST = 2**53  # integers that every reader of JSON has alike


@dataclass(frozen=True)
class ListOf:
    """A list whose items all have one shape."""

    item: Shape


@dataclass(frozen=True)
class Optional:
    """The key may be missing, or its value null."""

    shape: Shape


class Count:
    """An integer from 0 to 2^53."""


class Number:
    """An integer or a finite number."""


Shape: TypeAlias = "type | ListOf | Optional | Mapping[str, Shape]"


def misfit(value: object, shape: Shape, where: str) -> str | None:
    """First place where `value` misses the `shape`, with the expected and the found value; None when it fits.

    shape: a class (`str`, `bool`, `dict`, Count, Number), ListOf, or a mapping of keys to shapes, whose keys
    are all there unless they are Optional; other keys of the value may be anything.
    """
    if isinstance(shape, Optional):
        return None if value is None else misfit(value, shape.shape, where)
    if isinstance(shape, Mapping):
        return _misfit_in_object(value, shape, where)
    if isinstance(shape, ListOf):
        if not isinstance(value, list):
            return _sentence(where, "a list", value)
        found = (misfit(item, shape.item, f"{where}[{index}]") for index, item in enumerate(value))
        return next((problem for problem in found if problem is not None), None)
    if shape is Count:
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
        return None if fits else _sentence(where, "a whole number from 0 to 2^53", value)
    if shape is Number:
        fits = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) <= _MOST**4
            and math.isfinite(value)
        )
        return None if fits else _sentence(where, "a number", value)
    return None if isinstance(value, shape) else _sentence(where, f"a {shape.__name__}", value)


def _misfit_in_object(value: object, shape: Mapping[str, Shape], where: str) -> str | None:
    if not isinstance(value, dict):
        return _sentence(where, "an object", value)
    for key, inner in shape.items():
        if key not in value:
            if isinstance(inner, Optional):
                continue
            return f"{where}: {key} is missing"
        problem = misfit(value[key], inner, f"{where}: {key}" if ":" not in where else f"{where}.{key}")
        if problem is not None:
            return problem
    return None


def _sentence(where: str, expected: str, value: object) -> str:
    text = repr(value)
    return f"{where}: expected {expected}, got {text if len(text) <= 40 else text[:40] + '...'}"
