"""Record of the fields that were given to an instance of an argument class, and by what.

A check of a flag without effect, or of two that contradict each other, asks this record and never whether a
value is the default: a flag given with its default was given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fastsft.arguments.choices import is_same
from fastsft.arguments.parsing.field_action import fields_on_line
from fastsft.arguments.support import default_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

PYTHON, COMMAND_LINE = "Python", "the command line"


class RefusedFlagsError(ValueError):
    """Flags that are refused together. `names`: their fields."""

    def __init__(self, message: str, names: Iterable[str]) -> None:
        super().__init__(message)
        self.names = tuple(names)


class RecordsGiven:
    """Base of the argument classes: keeps the names that its constructor was called with.

    A caller that passes every field (HfArgumentParser, dataclasses.replace) gives those that are not the
    defaults, and those whose flags a parser at work has just seen. The record is in no `vars()`.
    """

    __slots__ = ("_given",)
    _given: dict[str, str]

    def __new__(cls, *values: object, **named: object) -> Self:
        made = super().__new__(cls)
        made._given = _given_to(cls, values, named)
        return made


def given_fields(args: object) -> dict[str, str]:
    """Field -> by what it was given; of a class of a script's own the fields that are not its defaults."""
    record = getattr(args, "_given", None)
    if isinstance(record, dict):
        return record
    if not dataclasses.is_dataclass(args) or isinstance(args, type):
        return {}
    return differing(type(args), {name: getattr(args, name) for name in _names(type(args))})


def was_given(args: object, name: str) -> bool:
    """True if the field `name` was given, with its default or with another value."""
    return name in given_fields(args)


def differing(kind: type[DataclassInstance], values: Mapping[str, object]) -> dict[str, str]:
    """Of `values` those that are not the defaults of `kind`: for callers that name every field."""
    defaults = {field.name: default_of(field) for field in dataclasses.fields(kind)}
    return {name: PYTHON for name, value in values.items() if not is_same(value, defaults.get(name))}


def made_with(kind: type[T], values: Mapping[str, Any], given: Mapping[str, str]) -> T:
    """`kind(**values)`, of which the names of `given` alone were given."""
    if not issubclass(kind, RecordsGiven):
        return kind(**values)
    made: Any = kind.__new__(kind)
    made._given = {name: given[name] for name in values if name in given}
    made.__init__(**values)
    return made  # type: ignore[no-any-return]


def note_set(args: RecordsGiven, names: Iterable[str], unset: Iterable[str] = ()) -> None:
    """Fields that a script has set on the instance since, and fields whose names these replace."""
    gone = set(unset)
    args._given = {name: by for name, by in args._given.items() if name not in gone}
    args._given |= dict.fromkeys(names, PYTHON)


def _given_to(kind: type, values: tuple[object, ...], named: Mapping[str, object]) -> dict[str, str]:
    if not dataclasses.is_dataclass(kind):
        return {}
    names = _names(kind)
    passed = {**dict(zip(names, values, strict=False)), **named}
    if not set(names) <= passed.keys():
        return {name: PYTHON for name in names if name in passed}
    on_line = fields_on_line()
    return {**differing(kind, passed), **{name: COMMAND_LINE for name in names if name in on_line}}


def _names(kind: type[DataclassInstance]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]
