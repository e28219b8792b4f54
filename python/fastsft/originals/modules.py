"""Functions that a module has and its file does not give it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator

from fastsft.originals.classes import Method
from fastsft.originals.functions import is_defined_there
from fastsft.originals.source import source_of

# Options of torch's checkpoint about how it saves what backward needs.
_SAVING = {"use_reentrant", "preserve_rng_state", "determinism_check", "debug"}
# Questions about the machine and complaints: the answer changes no result.
_QUESTIONS = ("is_", "check_", "require", "warn", "logg")


def foreign_functions(module: str) -> Iterator[Method]:
    """Those of a module that is imported, by their places; without ones that only ask or complain."""
    source, values = source_of(module), vars(sys.modules[module])
    for name in list(source.codes):
        if "." in name or name.startswith(_QUESTIONS) or not source.defines(name) or name not in values:
            continue
        if not is_defined_there(values[name], module, name):
            yield Method(f"{module}.{name}", values[name])
    for name, places in source.imports.items():
        if name in values and not name.startswith(_QUESTIONS) and _is_other(values[name], places):
            yield Method(f"{module}.{name}", values[name])


def _is_other(value: object, places: list[tuple[str, str | None]]) -> bool:
    """True if something that is called was imported from none of the places that the file names."""
    if not callable(value):
        return False
    if isinstance(value, functools.partial) and set(value.keywords) <= _SAVING and not value.args:
        value = value.func
    origins = [vars(sys.modules[home]).get(name) for home, name in places if name and home in sys.modules]
    found = [origin for origin in origins if origin is not None]
    if not found or any(value is origin or _named(value) == _named(origin) for origin in found):
        return False
    return not any(_is_written_at(value, home, name) for home, name in places if name)


def _is_written_at(value: object, home: str, name: str) -> bool:
    """True if the file of `home` defines the value so: then it is the origin that a script has changed."""
    return home in sys.modules and is_defined_there(value, home, name)


def _named(value: object) -> tuple[str, str]:
    """Of a class, which a reload makes again under the same name; of others what equals nothing else."""
    return (value.__module__, value.__qualname__) if isinstance(value, type) else (str(id(value)), "")
