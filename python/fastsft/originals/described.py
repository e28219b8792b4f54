"""Names of functions, classes and objects in messages."""

from __future__ import annotations

import functools
import sys
from types import FunctionType

from fastsft.originals.defaults import has_written_defaults
from fastsft.originals.source import source_of


def described(value: object) -> str:
    """module.name of a function or class; of another object its class.

    A function that has another's name, as functools.wraps makes it, has the name of its code after it.
    """
    if isinstance(value, functools.partial):
        return f"functools.partial of {described(value.func)}"
    if value is None:
        return "nothing"
    value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    name = getattr(value, "__qualname__", None)
    if name is None:
        return f"an object of {described(type(value))}"
    text = f"{getattr(value, '__module__', None) or 'builtins'}.{name}"
    if _has_other_defaults(value):
        return f"{text} with other default values"
    if not isinstance(value, FunctionType) or value.__code__.co_qualname == name:
        return text
    return f"{text} (its code: {value.__globals__.get('__name__')}.{value.__code__.co_qualname})"


def _has_other_defaults(value: object) -> bool:
    if not isinstance(value, FunctionType):
        return False
    home = str(value.__globals__.get("__name__"))
    is_written = home in sys.modules and source_of(home).holds(value.__code__)
    return is_written and not has_written_defaults(value, home)
