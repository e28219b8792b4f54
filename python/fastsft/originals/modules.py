"""Functions of a module that are not what its file defines."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from fastsft.originals.classes import Method
from fastsft.originals.functions import is_defined_there
from fastsft.originals.source import source_of

# Questions about the machine and complaints: the answer changes no result.
_QUESTIONS = ("is_", "check_", "require", "warn")


def foreign_functions(module: str) -> Iterator[Method]:
    """Those of a module that is imported, by where they stand; without ones that only ask or complain."""
    source, values = source_of(module), vars(sys.modules[module])
    for name in list(source.codes):
        if "." in name or name.startswith(_QUESTIONS) or not source.defines(name) or name not in values:
            continue
        if not is_defined_there(values[name], module, name):
            yield Method(f"{module}.{name}", values[name])
