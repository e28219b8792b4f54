"""Converts the values of fields from Python objects, JSON and text, and checks their ranges.

The command line parser converts its own words, but scripts and notebooks may pass any object. Text has the
same meaning as on the command line ("False" is False). Wrong types and ranges are errors in this module,
before they can cause errors in the engine.
"""

from __future__ import annotations

import json
import os
import re
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from fastsft.arguments.parsing.options import parse_bool
from fastsft.runtime.near_names import missing_hint
from fastsft.runtime.regular_files import read_json


class Range(NamedTuple):
    """Range of a number. text: description for messages. holds: returns whether a number is in the range."""

    text: str
    holds: Callable[[float], bool]


_NOT_NEGATIVE = Range("0 or more", lambda value: 0 <= value < float("inf"))
_SHARE = Range("0 or more and below 1", lambda value: 0 <= value < 1)
_SEED = Range("0 or more and below 2^63", lambda value: 0 <= value < 2**63)
_FINITE = Range("a finite number", lambda value: abs(value) < float("inf"))
_AT_LEAST_ONE = Range("at least 1", lambda value: value >= 1)
_RANGES = {
    "max_grad_norm": Range("0 (off) or more", lambda value: value >= 0),
    "max_steps": Range("-1 (by epochs) or more", lambda value: value >= -1),
    **dict.fromkeys(
        (
            "learning_rate", "weight_decay", "adam_epsilon", "eval_delay", "save_patience",
            "loss_spike_factor", "early_stopping_threshold", "sample_temperature",
        ),
        _NOT_NEGATIVE,
    ),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), _SHARE),
    **dict.fromkeys(("seed", "data_seed"), _SEED),
    **dict.fromkeys(
        (
            "ddp_timeout", "dataloader_prefetch_factor", "early_stopping_patience", "sample_max_new_tokens",
        ),
        _AT_LEAST_ONE,
    ),
    **dict.fromkeys(
        (
            "num_train_epochs", "warmup_steps", "warmup_ratio", "logging_steps", "save_steps", "eval_steps",
            "neftune_noise_alpha",
        ),
        _FINITE,
    ),
}  # fmt: skip
# Number fields that may be None, which means off, although their types do not include None.
_NONE_IS_OFF = ("eval_delay", "max_grad_norm")
_LISTS: tuple[type, ...] = (str, list, tuple)
_TEXTS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(
        (
            "output_dir",
            "logging_dir",
            "cache_dir",
            "metric_for_best_model",
            "optim",
            "phase_timeouts",
            "profile_steps",
        ),
        str,
    ),
    "report_to": _LISTS,
    "fsdp": (*_LISTS, bool),  # True is full_shard in transformers
}
_TRUE = ("y", "yes", "t", "true", "on", "1")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
# _ENUM_FIELDS: fields that are enumerations in transformers. _MEMBER_NAMES: transformers' names of members
# that are not their values in capitals.
_ENUM_FIELDS = (
    "eval_strategy", "logging_strategy", "save_strategy", "lr_scheduler_type", "optim", "hub_strategy",
)  # fmt: skip
_MEMBER_NAMES = {"reduce_lr_on_plateau": "REDUCE_ON_PLATEAU", "adamw_bnb_8bit": "ADAMW_BNB"}


def checked_value(declared: type, name: str, value: object) -> object:
    """Convert `value` to the type that the field `name` has, and check its range; paths become strings.

    None is kept for booleans, and if the field's type includes None. ValueError for a wrong type or range.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if (
        name in _TEXTS
        and (value is not None or name == "profile_steps")
        and not isinstance(value, _TEXTS[name])
    ):
        kinds = "a text" if _TEXTS[name] is str else "a text or a list of texts"
        raise ValueError(f"--{name}: expected {kinds}, got {value!r:.60}; give it in quotes")
    kind, may_be_none = _scalar_types(declared).get(name, (None, True))
    if kind is None or (value is None and (may_be_none or name in _NONE_IS_OFF)):
        return value
    converted = _CONVERSIONS[kind](value)
    if converted is None or converted != converted:  # a NaN is not equal to itself
        raise ValueError(f"--{name}: expected {_TYPE_NAMES[kind]}, got {value!r}")
    limits = _RANGES.get(name)
    if limits is not None and not limits.holds(converted):
        raise ValueError(f"--{name}: expected {limits.text}, got {value!r}")
    return converted


def check_choice(declared: type, name: str, value: object) -> None:
    """Raise ValueError if the field `name` is a Literal, and `value` is not among its members.

    None is always allowed.
    """
    choices = _choices(declared).get(name, ())
    if choices and value is not None and value not in choices:
        raise ValueError(f"--{name}: expected one of {', '.join(map(str, choices))}, got {value!r}")


def _bool(value: object) -> bool | None:
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
    bool: _bool, int: _whole_number, float: _number,
}  # fmt: skip
_TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number"}


@cache
def type_hints(declared: type) -> dict[str, Any]:
    """Return the types of a class's fields. Evaluating the annotations takes most of a parser's time."""
    return get_type_hints(declared)


@cache
def _scalar_types(declared: type) -> dict[str, tuple[type, bool]]:
    """Return (type, whether None is allowed) for each field of type bool, int or float, perhaps with None."""
    types_of: dict[str, tuple[type, bool]] = {}
    for name, hint in type_hints(declared).items():
        members = [member for member in union_members(hint) if member is not type(None)]
        if len(members) == 1 and members[0] in _CONVERSIONS:
            types_of[name] = members[0], hint is not members[0] or hint is bool
    return types_of


@cache
def _choices(declared: type) -> dict[str, tuple[object, ...]]:
    return {
        name: get_args(member)
        for name, hint in type_hints(declared).items()
        for member in union_members(hint)
        if get_origin(member) is Literal
    }


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union type; `(hint,)` for other types."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def json_object(name: str, value: object) -> dict[str, Any]:
    """Copy a dictionary, parse the JSON object in a string, or return {} for None.

    ValueError, which names the field `name`, for other values.
    """
    if isinstance(value, str):
        try:
            value = with_values(json.loads(value))
        except (json.JSONDecodeError, RecursionError) as error:
            text = str(value)
            reason = f"no such file{missing_hint(text)}" if text.endswith(".json") else error
            raise ValueError(
                f"--{name}: expected a JSON object, such as '{{\"name\": 1}}', got {value!r}: {reason}"
            ) from None
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"--{name}: {not_an_object(value)}")
    return dict(value or {})


def not_an_object(value: object) -> str:
    """Return the message about a value of JSON that is no object."""
    return (
        f"expected a JSON object, such as '{{\"name\": 1}}' or the name of a file with one, got "
        f"{_shortened(value)}"
    )


def with_values(value: object) -> object:
    """Convert strings in a JSON value to booleans and numbers: true, 12 and 0.5, but not 1e-4 or -1."""
    if isinstance(value, dict):
        return {key: with_values(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdigit() else value


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def json_file_or_object(name: str, value: object) -> dict[str, Any]:
    """Read a dictionary from a JSON file; convert other values as `json_object` does.

    ValueError also if the file is missing.
    """
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        path = Path(value).expanduser()
        if not path.is_file():
            raise ValueError(
                f"--{name}: expected a JSON file or object, got {value!r}: no such file{missing_hint(path)}"
            )
        try:
            value = read_json(path, of_user=True)
        except ValueError as error:
            raise ValueError(f"--{name}: {error}") from None
    return json_object(name, value)


def truth(value: object) -> bool:
    """Return a setting of a JSON file as a boolean; the strings y, yes, t, true, on and 1 are True."""
    return value.lower() in _TRUE if isinstance(value, str) else bool(value)


def parse_size(size: str | int) -> int:
    """Return a size in bytes, from "5GB" (decimal), "5GiB" (binary) or a number.

    ValueError for other text.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f'--max_shard_size: expected a size like "5GB" or "500MB", got "{size}"')
    value = int(float(match[1]) * unit)
    if value <= 0:
        raise ValueError(f"--max_shard_size: expected more than 0 bytes, got {size}")
    return value


def parse_steps(text: str) -> tuple[int, int]:
    """Return the first and last step of a text like "3-5" or "4", counted from 1.

    ValueError for other text.
    """
    first, dash, last = text.partition("-")
    last = last if dash else first
    if first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise ValueError(f"--profile_steps: expected steps as 3-5 or 4, counted from 1, got {text!r}")


class Choice(str):
    """String with the `value` and `name` of transformers' enumeration members, which scripts read."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The value as a plain string."""
        return str(self)

    @property
    def name(self) -> str:
        """transformers' name for the member, such as STEPS."""
        return _MEMBER_NAMES.get(self, self.upper())


def name_choices(args: object) -> None:
    """Replace the strings of fields that are enumerations in transformers by `Choice`s."""
    for name in _ENUM_FIELDS:
        value = getattr(args, name)
        if isinstance(value, str):
            setattr(args, name, Choice(value))


def without_enums(value: object) -> object:
    """Replace an enumeration member by its value, also in a list; scripts may pass transformers' members."""
    if isinstance(value, list):
        return [without_enums(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def plain(value: object) -> object:
    """Return a `Choice` as a plain string, and any other value unchanged."""
    return value.value if isinstance(value, Choice) else value


def is_same(first: object, second: object) -> bool:
    """True if both values have the same type and are equal; True and 1 are not the same."""
    first, second = plain(first), plain(second)
    return type(first) is type(second) and bool(first == second)
