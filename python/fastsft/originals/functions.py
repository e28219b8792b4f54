"""Checks whether a function has the code in its module's file, and names functions for messages."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from fastsft.originals.source import has_written_defaults, source_of
from fastsft.runtime.versions import RENAMED_CODE, WRAPPED_BY_BASES

# decorator -> function that makes the decorator's wrapper, if the names differ
_MADE_BY = {"no_grad": "context_decorator", "inference_mode": "context_decorator"}
_MAX_LAYERS = 8
# Packages whose decorators do not change a function's results.
_DECORATORS = ("transformers", "torch", "huggingface_hub", "contextlib", "accelerate")


def plain(value: object) -> Any:
    """Return the function inside a static, class or bound method, a cache, or a property."""
    if isinstance(value, staticmethod | classmethod | MethodType):
        return value.__func__
    if isinstance(value, functools._lru_cache_wrapper):
        return value.__wrapped__
    return value.fget if type(value) is property else value


def is_defined_there(value: object, module: str, qualname: str) -> bool:
    """Return True if the definition `qualname` in `module`'s file, with its decorators, results in `value`.

    Code and default values are compared instead of names, so `functools.wraps` hides nothing.
    """
    expected = source_of(module).codes.get(qualname, [])
    return bool(expected) and _leads_to(plain(value), module, qualname, expected, _MAX_LAYERS)


def is_written_in(value: object, package: str) -> bool:
    """Return True if some function in a file of `package` has `value`'s code."""
    function = plain(value)
    if not isinstance(function, FunctionType):
        return False
    home = str(function.__globals__.get("__name__", ""))
    if home != package and not home.startswith(package + "."):
        return False
    return (
        _is_module_of(function, home)
        and source_of(home).holds(_code_of(function, home))
        and has_written_defaults(function, home)
    )


def uncompiled(value: object) -> object:
    """Return the function that torch.compile has wrapped; else `value` itself."""
    while is_written_in(value, "torch._dynamo"):
        given = getattr(plain(value), "_torchdynamo_orig_callable", value)
        if given is value:
            break
        value = given
    return value


def _leads_to(function: object, module: str, qualname: str, expected: list[CodeType], depth: int) -> bool:
    function = plain(uncompiled(function))
    if not isinstance(function, FunctionType) or depth == 0:
        return False
    if function.__code__ in expected:
        return _is_module_of(function, module) and has_written_defaults(function, module)
    if not _is_decorators(function, source_of(module).decorators(qualname)):
        return False
    inside = list(functions_inside(function))
    leads = [_leads_to(inner, module, qualname, expected, depth - 1) for inner in inside]
    return any(leads) and all(
        leads[i] or any(is_written_in(inside[i], home) for home in _DECORATORS) for i in range(len(inside))
    )


def _is_decorators(function: FunctionType, decorators: set[str]) -> bool:
    """Return True if one of the named `decorators` makes wrappers with the code of `function`."""
    # Dynamo's wrapper of Module.__init__, which only counts modules.
    if is_written_in(function, "torch._dynamo.mutation_guard"):
        return True
    if not any(is_written_in(function, home) for home in _DECORATORS):
        return False
    home = str(function.__globals__.get("__name__"))
    maker = _code_of(function, home).co_qualname
    if (home, maker.partition(".<locals>.")[0]) in WRAPPED_BY_BASES:
        return True
    made_by = maker.split(".")[0]
    if made_by == "ContextDecorator":  # a context manager is the decorator
        return any(name in decorators for name in _contexts_of(function))
    return made_by in {_MADE_BY.get(name, name) for name in decorators}


def _contexts_of(function: FunctionType) -> Iterator[str]:
    """Yield the names of the context managers that a wrapper from contextlib enters."""
    for cell in function.__closure__ or ():
        maker = getattr(cell.cell_contents, "func", None)
        if isinstance(maker, FunctionType) and any(is_written_in(maker, home) for home in _DECORATORS):
            yield maker.__name__


def _code_of(function: FunctionType, home: str) -> CodeType:
    """Return the function's code under the name that the code has in `home`'s file."""
    code = function.__code__
    for qualname in RENAMED_CODE.get(home, ()):
        named = code.replace(co_name=qualname.rpartition(".")[2], co_qualname=qualname)
        if source_of(home).holds(named):
            return named
    return code


def functions_inside(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the functions in a closure, such as a decorator's wrapper."""
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
        if isinstance(content, FunctionType) and content is not function:
            yield content


def _is_module_of(function: FunctionType, module: str) -> bool:
    """Return True if `function` reads the names of the module itself, not of a copy."""
    return function.__globals__ is vars(sys.modules[module]) if module in sys.modules else False


def described(value: object) -> str:
    """Return "module.name" of a function or class; for another object, a text that names its class.

    The name of the code is added if the function has another function's name, as with functools.wraps.
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
