"""Applies the treatments of fields to arguments: what is refused raises, what has no effect is named."""

from __future__ import annotations

import dataclasses
import types
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Literal, Union, get_args, get_origin, get_type_hints

from fastsft.arguments.support import default_of, meaning_of
from fastsft.arguments.values import checked_value
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def apply_treatments(args: object, declared: type[DataclassInstance]) -> None:
    """ValueError for a refused value and for one that a field cannot have; a line for each NO-OP set.

    Values get the types of their fields (values.py).

    `declared`: the class whose fields are fastsft's. A subclass that declares some again changes neither
    their meaning nor what is refused.
    """
    for field in dataclasses.fields(declared):
        if not field.init:
            continue
        meaning = meaning_of(field)
        value = _plain(getattr(args, field.name))
        if meaning.treatment == "REJECT":
            value = _converted(declared, field.name, value)
        elif meaning.treatment == "IMPLEMENT" or value is not None:
            value = checked_value(declared, field.name, value)
        setattr(args, field.name, value)
        _check_choice(declared, field.name, value)
        if meaning.treatment == "IMPLEMENT" or value == default_of(field):
            continue
        if meaning.neutral and not any(
            type(value) is type(item) and value == item for item in meaning.neutral
        ):
            raise ValueError(refusal(field.name, value, meaning.remark))
        if meaning.treatment == "NO-OP" and not meaning.quiet:
            warn_once(f"--{field.name} has no effect: {meaning.remark}")


def _converted(declared: type, name: str, value: object) -> object:
    """Of the field's type where it can be: the word False is False. What cannot is refused as it is."""
    try:
        return checked_value(declared, name, value)
    except ValueError:
        return value


def refusal(name: str, value: object, remark: str) -> str:
    """Message about a value that fastsft does not take."""
    shown = "" if value is True else f" {value}"
    return f"fastsft does not support --{name}{shown}; {remark}"


def choices_of(declared: type, name: str) -> tuple[object, ...]:
    """The values of a field that is a Literal, or may be one; () for other fields."""
    return _choices(declared).get(name, ())


def _plain(value: object) -> object:
    """Scripts give members of transformers' enumerations: their values count."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _check_choice(declared: type, name: str, value: object) -> None:
    choices = choices_of(declared, name)
    if choices and value is not None and value not in choices:
        raise ValueError(f"--{name}: expected one of {', '.join(map(str, choices))}, got {value!r}")


@cache
def _choices(declared: type) -> dict[str, tuple[object, ...]]:
    found = {}
    for name, hint in get_type_hints(declared).items():
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        for member in members:
            if get_origin(member) is Literal:
                found[name] = get_args(member)
    return found
