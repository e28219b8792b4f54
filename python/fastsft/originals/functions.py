"""Check that a function is the one that its module's file defines."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from fastsft.originals.defaults import has_written_defaults
from fastsft.originals.source import source_of
from fastsft.runtime.versions import RENAMED_CODE, WRAPPED_BY_BASES

# What a decorator's name in a file makes: torch.no_grad() goes through a function of another name.
_MADE_BY = {"no_grad": "context_decorator", "inference_mode": "context_decorator"}
_MAX_LAYERS = 8
_DECORATORS = (
    "transformers",
    "torch",
    "huggingface_hub",
    "contextlib",
    "accelerate",
)  # whose decorators change no result


def plain(value: object) -> Any:
    """The function in a static, class or bound method, or in a property that can only be read by it."""
    if isinstance(value, staticmethod | classmethod | MethodType):
        return value.__func__
    if isinstance(value, functools._lru_cache_wrapper):
        return value.__wrapped__
    return value.fget if type(value) is property else value


def is_defined_there(value: object, module: str, qualname: str) -> bool:
    """True if `value` is what the def `qualname` of `module` makes, with the decorators written above it.

    The code and the default values count, not the names that a function gives itself: `functools.wraps`
    hides nothing.
    """
    expected = source_of(module).codes.get(qualname, [])
    return bool(expected) and _leads_to(plain(value), module, qualname, expected, _MAX_LAYERS)


def is_written_in(value: object, package: str) -> bool:
    """True if the code of `value` is in a file of `package`, in whatever function."""
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
    """The function that torch.compile was given, when `value` is what it made of it."""
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
    """True if `function` is the wrapper that one of these decorators of torch or transformers makes."""
    if is_written_in(function, "torch._dynamo.mutation_guard"):  # counts modules, around Module.__init__
        return True
    if not any(is_written_in(function, home) for home in _DECORATORS):
        return False
    home = str(function.__globals__.get("__name__"))
    maker = _code_of(function, home).co_qualname
    if (home, maker.partition(".<locals>.")[0]) in WRAPPED_BY_BASES:
        return True
    made_by = maker.split(".")[0]
    if made_by == "ContextDecorator":  # a context manager over a whole function
        return any(name in decorators for name in _contexts_of(function))
    return made_by in {_MADE_BY.get(name, name) for name in decorators}


def _contexts_of(function: FunctionType) -> Iterator[str]:
    """Names of the libraries' functions that made the contexts which a wrapper of contextlib enters."""
    for cell in function.__closure__ or ():
        maker = getattr(cell.cell_contents, "func", None)
        if isinstance(maker, FunctionType) and any(is_written_in(maker, home) for home in _DECORATORS):
            yield maker.__name__


def _code_of(function: FunctionType, home: str) -> CodeType:
    """Its code, under the name that the file `home` has for it."""
    code = function.__code__
    for qualname in RENAMED_CODE.get(home, ()):
        named = code.replace(co_name=qualname.rpartition(".")[2], co_qualname=qualname)
        if source_of(home).holds(named):
            return named
    return code


def functions_inside(function: FunctionType) -> Iterator[FunctionType]:
    """Those that its closure holds, as a decorator's does."""
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # still empty
            continue
        if isinstance(content, FunctionType) and content is not function:
            yield content


def _is_module_of(function: FunctionType, module: str) -> bool:
    """True if the names in `function` are those of the module, not of a copy."""
    return function.__globals__ is vars(sys.modules[module]) if module in sys.modules else False
