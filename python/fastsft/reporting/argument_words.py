"""The arguments of a run that were given, or differ from their defaults, as words of a command line."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import TYPE_CHECKING, Any

from fastsft.arguments.given import given_fields
from fastsft.arguments.support import default_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Set by the run itself, or shown elsewhere on the start page.
_LEFT_OUT = ("logging_dir", "local_rank", "output_dir", "do_eval", "dataloader_pin_memory")


def changed_arguments(*instances: DataclassInstance) -> dict[str, Any]:
    """Name -> value of the fields that were given, or are not what a fresh instance of their class has."""
    changed = {}
    for instance in instances:
        usual, given = _usual(type(instance)), given_fields(instance)
        for field in dataclasses.fields(instance):
            value = getattr(instance, field.name)
            if not field.init or field.name in _LEFT_OUT:
                continue
            if field.name in given or value != usual.get(field.name):
                changed[field.name] = value
    return {
        name: f"<{name.upper()}>" if name.endswith("_token") else value for name, value in changed.items()
    }


def argument_words(changed: dict[str, Any]) -> list[str]:
    """`--name value`, one text a field, quoted as a shell needs it."""
    return [f"--{name} {shlex.quote(_word(value))}" for name, value in changed.items()]


def _usual(kind: type) -> dict[str, Any]:
    """The defaults, as they are after the class has settled them; a subclass may need more than nothing."""
    try:
        fresh = kind()
    except (TypeError, ValueError):
        return {field.name: default_of(field) for field in dataclasses.fields(kind)}
    return {field.name: getattr(fresh, field.name) for field in dataclasses.fields(kind)}


def _word(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
