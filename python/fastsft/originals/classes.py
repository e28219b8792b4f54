"""Finds methods, constants and functions that differ from their class's or module's source file."""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import NamedTuple

from fastsft.originals.functions import is_defined_there, is_written_in, plain
from fastsft.originals.source import source_of
from fastsft.runtime.versions import MODULES_OF_DATACLASSES

LIBRARIES = ("transformers", "torch", "huggingface_hub", "fastchat", "fastsft", "accelerate")
# Code name prefix of methods that Python generates for dataclasses. No source file has these methods.
_MADE_BY_DATACLASSES = "__create_fn__.<locals>."
# In these modules, transformers copies methods from a base class into its Auto classes.
_FILLED_BY_COPIES = "transformers.models.auto."
# Options of torch's checkpoint that affect how tensors are saved, but not the results.
_SAVING = {"use_reentrant", "preserve_rng_state", "determinism_check", "debug"}
# Name prefixes of functions that only query the machine or print warnings. Replacing such a function changes
# no result.
_QUESTIONS = ("is_", "check_", "require", "warn", "logg")
_NO_EFFECT = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "COPY_FREE_VARS", "MAKE_CELL"}
_ABSENT = object()


class Method(NamedTuple):
    """A replaced method, constant or function.

    where: module, class and name. value: the current value; None if a script deleted the attribute.
    """

    where: str
    value: object

    @property
    def name(self) -> str:
        """The name without module and class."""
        return self.where.replace(" ", ".").rpartition(".")[2]


_checked: weakref.WeakKeyDictionary[type, tuple[tuple[object, ...], list[Method]]] = (
    weakref.WeakKeyDictionary()
)


def replaced_methods(kind: type) -> list[Method]:
    """Return the methods of `kind` and its bases that differ from their files, or that scripts have added.

    An added method is left out if no base class has its name, because nothing calls the method.
    """
    state = methods_of(kind)
    known = _checked.get(kind)
    if known is None or known[0] != state:
        known = (state, list(_replaced(kind)))
        _checked[kind] = known
    return known[1]


def replaced_methods_of(value: object) -> list[Method]:
    """Return an object's replaced methods, and its class's."""
    kind = type(value)
    own = [
        Method(f"{kind.__module__}.{kind.__qualname__} object's {name}", found)
        for name, found in replaced_on(value).items()
    ]
    return own + replaced_methods(kind)


def is_class_of(kind: type, package: str) -> bool:
    """Return True if `package`'s files define a class with the module and the name of `kind`."""
    home = kind.__module__
    is_theirs = home.startswith(f"{package}.") and home in sys.modules
    return is_theirs and source_of(home).defines_class(kind.__qualname__)


def is_own_object(value: object, names: Collection[str]) -> bool:
    """Return True if `value` is unchanged and has a library's class whose name is in `names`."""
    kind = type(value)
    is_named = kind.__name__ in names and kind.__module__.split(".")[0] in LIBRARIES
    return is_named and not replaced_methods_of(value)


def replaced_on(value: object) -> dict[str, Callable[..., object]]:
    """Return the object's callables that hide methods of its class, by name; bound methods are left out."""
    kind, attributes = type(value), getattr(value, "__dict__", {})
    return {
        name: found
        for name, found in attributes.items()
        if callable(found) and callable(getattr(kind, name, None)) and not _is_bound(found, value, name)
    }


def methods_of(kind: type) -> tuple[object, ...]:
    """Return the methods of a class with their code and default values, for a later comparison."""
    return tuple(
        (owner, name, *(_inside(part) for part in _parts(value)))
        for owner in kind.__mro__
        if not _is_of_python(owner)
        for name, value in sorted(vars(owner).items(), key=lambda item: item[0])
        if _is_code(value)
    )


def _replaced(kind: type) -> Iterator[Method]:
    for position, owner in enumerate(kind.__mro__):
        if _is_of_python(owner):
            continue
        bases = kind.__mro__[position + 1 :]
        for name, value in list(vars(owner).items()):
            counts = _is_code(value) and (_defines(owner, name) or _hides(name, value, bases))
            if counts and not _is_own(owner, name, value):
                yield Method(f"{owner.__module__}.{owner.__qualname__}.{name}", value)
        yield from _missing(owner)


def _hides(name: str, value: object, bases: Sequence[type]) -> bool:
    """Return True if an added name hides an attribute of a base class."""
    is_made = isinstance(value, property) and any("__getattr__" in vars(base) for base in bases)
    return name[:2] == "__" or is_made or any(name in vars(base) for base in bases)


def _missing(owner: type) -> Iterator[Method]:
    """Yield methods that a script has deleted, so that a base class's methods are called instead."""
    if owner.__module__ not in sys.modules:
        return
    prefix = f"{owner.__qualname__}."
    for qualname in source_of(owner.__module__).codes:
        name = qualname.removeprefix(prefix)
        private = name.startswith("__") and not name.endswith("__")
        if name == qualname or "." in name or private or name in vars(owner) or not _defines(owner, name):
            continue
        if not name.startswith("<"):
            yield Method(f"{owner.__module__}.{qualname}", None)


def _is_own(owner: type, name: str, value: object) -> bool:
    home, qualname = owner.__module__, f"{owner.__qualname__}.{name}"
    if home.split(".")[0] not in LIBRARIES or home not in sys.modules:
        return False
    if _defines(owner, name):
        if all(is_defined_there(part, home, qualname) for part in _parts(value)):
            return True
        return home.startswith(_FILLED_BY_COPIES) and _is_of_base(owner, name, value)
    return all(
        any(is_written_in(part, library) for library in (*LIBRARIES, *MODULES_OF_DATACLASSES))
        or _is_generated(part, home)
        for part in _parts(value)
    )


def _is_of_base(owner: type, name: str, value: object) -> bool:
    return any(
        base.__module__ in sys.modules
        and is_defined_there(value, base.__module__, f"{base.__qualname__}.{name}")
        for base in owner.__mro__[1:]
    )


def _defines(owner: type, name: str) -> bool:
    module = owner.__module__
    return module in sys.modules and source_of(module).defines(f"{owner.__qualname__}.{name}")


def _is_generated(function: object, home: str) -> bool:
    """Return True if dataclasses generated the function for a class of module `home`."""
    return (
        isinstance(function, FunctionType)
        and function.__code__.co_qualname.startswith(_MADE_BY_DATACLASSES)
        and function.__globals__ is vars(sys.modules[home])
    )


def _parts(value: object) -> list[object]:
    """Return the functions in a class attribute; the attribute itself if its type is no known wrapper."""
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if isinstance(value, functools.cached_property):
        return [value.func]
    return [plain(value)]


def _inside(function: object) -> tuple[object, ...]:
    if not isinstance(function, FunctionType):
        return (function,)
    named = tuple((function.__kwdefaults__ or {}).items())
    return function, function.__code__, function.__defaults__, named


def _is_code(value: object) -> bool:
    """Return True if a class attribute is code, as opposed to a value."""
    wrapped = isinstance(value, property | staticmethod | classmethod | functools.cached_property)
    return wrapped or (callable(value) and not isinstance(value, type))


def _is_of_python(owner: type) -> bool:
    home = owner.__module__.split(".")[0]
    return home == "builtins" or (home in sys.stdlib_module_names and home != "__main__")


def _is_bound(found: object, value: object, name: str) -> bool:
    own = getattr(type(value), name, None)
    return isinstance(found, MethodType) and found.__self__ is value and found.__func__ is own


def changed_constants(kind: type, package: str) -> Iterator[Method]:
    """Yield constants of `kind` and its bases in `package` whose values differ from their files.

    Private names and dataclass fields are left out.
    """
    for owner in kind.__mro__:
        if not is_class_of(owner, package) or "__dataclass_fields__" in vars(owner):
            continue
        for name, written in _constants(owner.__module__, owner.__qualname__).items():
            value = vars(owner).get(name, _ABSENT)
            if type(value) is not type(written) or value != written:
                yield Method(
                    f"{owner.__module__}.{owner.__qualname__}.{name}", None if value is _ABSENT else value
                )


@functools.cache
def _constants(module: str, qualname: str) -> dict[str, object]:
    assert module in sys.modules
    codes = source_of(module).codes.get(qualname, [])
    return _stored(codes[0]) if len(codes) == 1 else {}


def _stored(code: CodeType) -> dict[str, object]:
    """Return the names that a class body sets to a constant and to nothing else."""
    found: dict[str, object] = {}
    others: set[str] = set()
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_NAME":
            name = str(instruction.argval)
            if (
                before is not None
                and before.opname == "LOAD_CONST"
                and not isinstance(before.argval, CodeType)
            ):
                found[name] = before.argval
            else:
                others.add(name)
        before = instruction
    return {name: value for name, value in found.items() if name not in others and name[0] != "_"}


def replaced_functions(module: str) -> Iterator[Method]:
    """Yield functions that an imported module defines or imports and that a script has replaced."""
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
    """Return True if a callable comes from none of the `places` from which the module's file imports it."""
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
    """Return True if `home`'s file defines the value; a script has then changed only `home`'s attribute."""
    return home in sys.modules and is_defined_there(value, home, name)


def _named(value: object) -> tuple[str, str]:
    """Return a class's name, which stays the same after a reload, or another object's identity."""
    return (value.__module__, value.__qualname__) if isinstance(value, type) else (str(id(value)), "")


def replaces_nothing(method: Method) -> bool:
    """Return True if the method is empty, and so is its definition in the file."""
    home, _, name = method.where.rpartition(".")
    module, _, kind = home.rpartition(".")
    written = source_of(module).codes.get(f"{kind}.{name}", []) if module in sys.modules else []
    return _returns_none(plain(method.value)) and bool(written) and all(map(_returns_none, written))


def _returns_none(function: object) -> bool:
    """Return True if a function, or a code object, only returns None."""
    code = getattr(function, "__code__", function)
    if not isinstance(code, CodeType):
        return False
    instructions = list(dis.get_instructions(code))
    constants = [each.argval for each in instructions if each.opname in ("LOAD_CONST", "RETURN_CONST")]
    return all(each.opname in _NO_EFFECT for each in instructions) and constants == [None]
