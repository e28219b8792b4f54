"""Records the fields that were given to an argument object, their source (Python, command line) and values.

Checks for flags without effect and for contradictory flags read this record. A comparison with defaults would
not be enough, because a flag can be given with its default value.

Resolving derives fields from other fields, such as eval_steps from logging_steps. If arguments are resolved
again, they start from the given values and from fields that a script has changed since, so derived values
follow.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fastsft.arguments.parsing.hints import hints
from fastsft.arguments.parsing.options import fields_on_line
from fastsft.arguments.support import default_of
from fastsft.arguments.values import is_same
from fastsft.runtime.given_types import explain_missing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

PYTHON, COMMAND_LINE = "Python", "the command line"

# field name -> (given value, resolved value)
Record = dict[str, tuple[object, object]]

# old field name -> new name. If a script sets the new name later, the old name's value is dropped.
_NEW_NAMES = {
    "evaluation_strategy": "eval_strategy",
    "group_by_length": "train_sampling_strategy",
    "no_cuda": "use_cpu",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_organization": "hub_model_id",
    "push_to_hub_token": "hub_token",
}


class RefusedFlagsError(ValueError):
    """Error about flags that are refused together. names: the names of their fields."""

    def __init__(self, message: str, names: Iterable[str]) -> None:
        super().__init__(message)
        self.names = tuple(names)


class RecordsGiven:
    """Base of the argument classes, which records the names that its constructor was called with.

    If the caller passes every field, as HfArgumentParser and dataclasses.replace do, a field counts as given
    if its value differs from its default, or if a parser has just seen its flag. The record is in a slot, so
    `vars()` does not show it.
    """

    __slots__ = ("_given",)
    _given: dict[str, str]

    def __new__(cls, *values: object, **named: object) -> Self:
        _check_names(cls, named)
        made = super().__new__(cls)
        made._given = _fields_given(cls, values, named)
        return made

    if not TYPE_CHECKING:  # a type checker finds such names itself

        def __getattr__(self, name: str) -> object:
            return explain_missing(self, name, "fastsft args lists all arguments")


def given_fields(args: object) -> dict[str, str]:
    """Return the source of each given field, by name: Python or the command line.

    For a script's own class, fields whose values differ from their defaults count as given.
    """
    record = getattr(args, "_given", None)
    if isinstance(record, dict):
        return record
    if not dataclasses.is_dataclass(args) or isinstance(args, type):
        return {}
    return differing(type(args), {name: getattr(args, name) for name in _names(type(args))})


def was_given(args: object, name: str) -> bool:
    """True if the field `name` was given, even if with its default value."""
    return name in given_fields(args)


def differing(kind: type[DataclassInstance], values: Mapping[str, object]) -> dict[str, str]:
    """Return the names whose `values` differ from the defaults in `kind`, recorded as given in Python."""
    defaults = {field.name: default_of(field) for field in dataclasses.fields(kind)}
    return {name: PYTHON for name, value in values.items() if not is_same(value, defaults.get(name))}


def made_with(kind: type[T], values: Mapping[str, Any], given: Mapping[str, str]) -> T:
    """Return `kind(**values)`, in which only the names in `given` are recorded as given."""
    if not issubclass(kind, RecordsGiven):
        return kind(**values)
    made: Any = kind.__new__(kind)
    made._given = {name: given[name] for name in values if name in given}
    made.__init__(**values)
    return made  # type: ignore[no-any-return]


def values_of(args: object, declared: type[DataclassInstance]) -> dict[str, Any]:
    """Return the values in `args` for `declared`'s fields, with lists and dictionaries copied."""
    return {name: _copied(getattr(args, name)) for name in _names(declared)}


def restore_given(
    args: RecordsGiven, declared: type[DataclassInstance], record: Record, set_now: frozenset[str]
) -> dict[str, Any]:
    """Reset fields that are unchanged since `record` to their given values; return all given values.

    set_now: names of fields that count as changed even if their value is the old one.
    """
    changed = {
        name
        for name, (_, resolved) in record.items()
        if name in set_now or not is_same(getattr(args, name), resolved)
    }
    for name in record.keys() - changed:
        setattr(args, name, _copied(record[name][0]))
    defaults = {field.name: default_of(field) for field in dataclasses.fields(declared)}
    replaced = {old for old, new in _NEW_NAMES.items() if new in changed and old not in changed}
    for old in replaced:
        setattr(args, old, defaults[old])
    args._given = {name: by for name, by in args._given.items() if name not in replaced}
    args._given |= dict.fromkeys(changed, PYTHON)
    return values_of(args, declared)


def record_of(args: object, declared: type[DataclassInstance], given: dict[str, Any]) -> Record:
    """Return the record: for each field, its value in `given` and its resolved value in `args`."""
    resolved = values_of(args, declared)
    return {name: (given[name], resolved[name]) for name in given}


def _copied(value: T) -> T:
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


def _fields_given(kind: type, values: tuple[object, ...], named: Mapping[str, object]) -> dict[str, str]:
    if not dataclasses.is_dataclass(kind):
        return {}
    names = _names(kind)
    passed = {**dict(zip(names, values, strict=False)), **named}
    if not set(names) <= passed.keys():
        return {name: PYTHON for name in names if name in passed}
    on_line = fields_on_line()
    return {**differing(kind, passed), **{name: COMMAND_LINE for name in names if name in on_line}}


def _check_names(kind: type, named: Mapping[str, object]) -> None:
    """Raise TypeError, with hints, for keyword arguments that are no fields."""
    fields = _names(kind) if dataclasses.is_dataclass(kind) else list(named)
    if unknown := [name for name in named if name not in fields]:
        told = hints([f"--{name}" for name in unknown], [f"--{name}" for name in fields])
        ways = "; ".join(told).replace("--", "").replace("known flag", "known name")
        raise TypeError(f"{kind.__name__}: unexpected keyword argument {ways}")


def _names(kind: type[DataclassInstance]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]
