"""How messages name a function, a class or an object."""

from __future__ import annotations

import functools
from typing import Any


def described(value: Any) -> str:
    """module.name of a function or class; of another object its class."""
    if isinstance(value, functools.partial):
        return f"functools.partial of {described(value.func)}"
    if value is None:
        return "nothing"
    value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    name = getattr(value, "__qualname__", None)
    if name is None:
        return f"an object of {described(type(value))}"
    return f"{getattr(value, '__module__', None) or 'builtins'}.{name}"
