"""User-given and resolved value of each field, so that arguments can be settled again.

Settling derives fields from others (steps of evaluation from those of logging, the device from an old name).
A second time it starts from what was given, and from what a script changed since; what was derived is derived
again, and nothing is said twice.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from fastsft.arguments.choices import is_same
from fastsft.arguments.given import RecordsGiven, note_set
from fastsft.arguments.support import default_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

# By field: the value as it was given, and what settling made of it.
Record = dict[str, tuple[object, object]]

# A script that sets the new name later means it, whatever the old one said before.
_NEW_NAMES = {
    "evaluation_strategy": "eval_strategy",
    "group_by_length": "train_sampling_strategy",
    "no_cuda": "use_cpu",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_organization": "hub_model_id",
    "push_to_hub_token": "hub_token",
}


def values_of(args: object, declared: type[DataclassInstance]) -> dict[str, Any]:
    """The fields of `declared` as they are in `args`; lists and dictionaries are copies."""
    names = [field.name for field in dataclasses.fields(declared) if field.init]
    return {name: _copied(getattr(args, name)) for name in names}


def restore_given(
    args: RecordsGiven, declared: type[DataclassInstance], record: Record, set_now: frozenset[str]
) -> dict[str, Any]:
    """Put back what was given where nothing changed since `record`. Returns the values that are given now.

    set_now: fields that count as changed even where the value is the old one.
    """
    changed = {
        name
        for name, (_, settled) in record.items()
        if name in set_now or not is_same(getattr(args, name), settled)
    }
    for name in record.keys() - changed:
        setattr(args, name, _copied(record[name][0]))
    defaults = {field.name: default_of(field) for field in dataclasses.fields(declared)}
    replaced = {old for old, new in _NEW_NAMES.items() if new in changed and old not in changed}
    for old in replaced:
        setattr(args, old, defaults[old])
    note_set(args, changed, replaced)
    return values_of(args, declared)


def record_of(args: object, declared: type[DataclassInstance], given: dict[str, Any]) -> Record:
    """The record of arguments that are settled now."""
    settled = values_of(args, declared)
    return {name: (given[name], settled[name]) for name in given}


def _copied(value: T) -> T:
    return copy.deepcopy(value) if isinstance(value, dict | list) else value
