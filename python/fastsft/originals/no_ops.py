"""Functions that do nothing: one in the place of another changes no result."""

from __future__ import annotations

import dis
import sys
from types import CodeType, FunctionType

from fastsft.originals.classes import Method
from fastsft.originals.functions import plain
from fastsft.originals.source import source_of

_OF_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "COPY_FREE_VARS", "MAKE_CELL"}


def replaces_nothing(method: Method) -> bool:
    """True if a method does nothing, and what its class's file defines there did nothing either."""
    home, _, name = method.where.rpartition(".")
    module, _, kind = home.rpartition(".")
    codes = source_of(module).codes.get(f"{kind}.{name}", []) if module in sys.modules else []
    return does_nothing(method.value) and bool(codes) and all(map(_is_empty, codes))


def does_nothing(value: object) -> bool:
    """True for a function that only returns None, whatever it is given."""
    function = plain(value)
    return isinstance(function, FunctionType) and _is_empty(function.__code__)


def _is_empty(code: CodeType) -> bool:
    instructions = list(dis.get_instructions(code))
    constants = [each.argval for each in instructions if each.opname in ("LOAD_CONST", "RETURN_CONST")]
    return all(each.opname in _OF_NOTHING for each in instructions) and constants == [None]
