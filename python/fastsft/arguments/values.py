"""Values of fields as Python gives them: of the field's type, and in its range.

A command line has its words parsed already; a script or a notebook has not. Words mean what they
mean on the command line. Everything else would end in the engine, or mean something else without a
word: "False" is true.
"""

from __future__ import annotations

import os
import types
from argparse import ArgumentTypeError
from collections.abc import Callable
from functools import cache
from numbers import Integral, Real
from typing import NamedTuple, Union, get_args, get_origin, get_type_hints

from fastsft.arguments.parsing.parser_options import parse_bool


class Range(NamedTuple):
    """The range of a number, in words and as a test."""

    text: str
    holds: Callable[[float], bool]


_NOT_NEGATIVE = Range("0 or more", lambda value: 0 <= value < float("inf"))
_SHARE = Range("0 or more and below 1", lambda value: 0 <= value < 1)
_SEED = Range("0 or more and below 2^63", lambda value: 0 <= value < 2**63)
_FINITE = Range("a finite number", lambda value: abs(value) < float("inf"))
_AT_LEAST_ONE = Range("at least 1", lambda value: value >= 1)
_RANGES = {
    "learning_rate": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "adam_beta1": _SHARE,
    "adam_beta2": _SHARE,
    "adam_epsilon": _NOT_NEGATIVE,
    "max_grad_norm": Range("0 (off) or more", lambda value: value >= 0),
    "eval_delay": _NOT_NEGATIVE,
    "seed": _SEED,
    "data_seed": _SEED,
    "ddp_timeout": _AT_LEAST_ONE,
    "max_steps": Range("-1 (by epochs) or more", lambda value: value >= -1),
    "dataloader_prefetch_factor": _AT_LEAST_ONE,
    "save_patience": _NOT_NEGATIVE,
    "loss_spike_factor": _NOT_NEGATIVE,
    **dict.fromkeys(
        (
            "num_train_epochs",
            "warmup_steps",
            "warmup_ratio",
            "logging_steps",
            "save_steps",
            "eval_steps",
            "neftune_noise_alpha",
        ),
        _FINITE,
    ),
}


# None means off there; elsewhere a number that may be missing says so in its type.
_MAY_BE_MISSING = ("eval_delay", "max_grad_norm")


def checked_value(declared: type, name: str, value: object) -> object:
    """`value` of the type of the field: words as on the command line, numbers in range, paths as strings.

    None stays where the type has it, and for a boolean. ValueError with what was expected and given.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    kind, may_be_none = _scalar_types(declared).get(name, (None, True))
    if kind is None or (value is None and (may_be_none or name in _MAY_BE_MISSING)):
        return value
    found = _CONVERSIONS[kind](value)
    if found is None or found != found:  # NaN is no number
        raise ValueError(f"--{name}: expected {_NAMES[kind]}, got {value!r}")
    limits = _RANGES.get(name)
    if limits is not None and not limits.holds(found):
        raise ValueError(f"--{name}: expected {limits.text}, got {value!r}")
    return found


def _truth(value: object) -> bool | None:
    if isinstance(value, str):
        try:
            return parse_bool(value.strip())
        except ArgumentTypeError:
            return None
    return bool(value) if isinstance(value, bool | Integral) and value in (0, 1) else None


def _number(value: object) -> int | float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def _whole_number(value: object) -> int | None:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    number = _number(value)
    if number is None or abs(number) == float("inf") or number != number or number != int(number):
        return None
    return int(number)


_CONVERSIONS: dict[type, Callable[[object], bool | int | float | None]] = {
    bool: _truth,
    int: _whole_number,
    float: _number,
}
_NAMES = {bool: "True or False", int: "a whole number", float: "a number"}


@cache
def _scalar_types(declared: type) -> dict[str, tuple[type, bool]]:
    """bool, int or float for the fields that are one, and whether they may be None."""
    found: dict[str, tuple[type, bool]] = {}
    for name, hint in get_type_hints(declared).items():
        is_union = get_origin(hint) in (Union, types.UnionType)
        members = [item for item in (get_args(hint) if is_union else (hint,)) if item is not type(None)]
        if len(members) == 1 and members[0] in _CONVERSIONS:
            found[name] = members[0], is_union or members[0] is bool
    return found
