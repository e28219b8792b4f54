"""Check that the methods of a class, of its bases and of an object are those that their files define."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FunctionType, MethodType
from typing import NamedTuple

from fastsft.originals.functions import is_defined_there, is_written_in, plain
from fastsft.originals.source import source_of
from fastsft.runtime.versions import MODULES_OF_DATACLASSES

LIBRARIES = ("transformers", "torch", "huggingface_hub", "fastchat", "fastsft", "accelerate")
# Of these, whatever Python itself writes into a class of theirs: no file holds it.
_MADE_BY_DATACLASSES = "__create_fn__.<locals>."
# The library itself puts copies of the base's methods into its Auto classes.
_FILLED_BY_COPIES = "transformers.models.auto."


class Method(NamedTuple):
    """`where` (module, class and name) is `value`, not what is there in the file; None: not there."""

    where: str
    value: object

    @property
    def name(self) -> str:
        """Of the method alone."""
        return self.where.replace(" ", ".").rpartition(".")[2]


_judged: weakref.WeakKeyDictionary[type, tuple[tuple[object, ...], list[Method]]] = (
    weakref.WeakKeyDictionary()
)


def foreign_methods(kind: type) -> list[Method]:
    """The methods of `kind` and its bases that their modules' files do not define so; those of scripts too.

    A method that is only added, under a name that no base has, changes nothing and is left out.
    """
    state = methods_of(kind)
    known = _judged.get(kind)
    if known is None or known[0] != state:
        known = (state, list(_foreign(kind)))
        _judged[kind] = known
    return known[1]


def foreign_methods_of(value: object) -> list[Method]:
    """Those of an object: set on itself, or `foreign_methods` of its class."""
    kind = type(value)
    own = [
        Method(f"{kind.__module__}.{kind.__qualname__} object's {name}", found)
        for name, found in replaced_on(value).items()
    ]
    return own + foreign_methods(kind)


def is_class_of(kind: type, package: str) -> bool:
    """True if a file of `package` defines a class where `kind` says that it is from."""
    home = kind.__module__
    is_theirs = home.startswith(f"{package}.") and home in sys.modules
    return is_theirs and source_of(home).defines_class(kind.__qualname__)


def is_own_object(value: object, names: Collection[str]) -> bool:
    """True if an object is of a class of transformers or torch with one of these names, unchanged."""
    kind = type(value)
    is_named = kind.__name__ in names and kind.__module__.split(".")[0] in LIBRARIES
    return is_named and not foreign_methods_of(value)


def replaced_on(value: object) -> dict[str, Callable[..., object]]:
    """Callables that an object has in the place of its class's, by name; its own bound ones left out."""
    kind, attributes = type(value), getattr(value, "__dict__", {})
    return {
        name: found
        for name, found in attributes.items()
        if callable(found) and callable(getattr(kind, name, None)) and not _is_bound(found, value, name)
    }


def methods_of(kind: type) -> tuple[object, ...]:
    """All that decides what the methods of a class do, to compare with later."""
    return tuple(
        (owner, name, *(_inside(part) for part in _parts(value)))
        for owner in kind.__mro__
        if not _is_of_python(owner)
        for name, value in sorted(vars(owner).items(), key=lambda item: item[0])
        if _is_code(value)
    )


def _foreign(kind: type) -> Iterator[Method]:
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
    """True if a name that the file does not have is found before what a base has, or makes when asked."""
    is_made = isinstance(value, property) and any("__getattr__" in vars(base) for base in bases)
    return name[:2] == "__" or is_made or any(name in vars(base) for base in bases)


def _missing(owner: type) -> Iterator[Method]:
    """Methods that the file defines and a script has deleted: then a base's count."""
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
    """True if dataclasses wrote the function, for a class of `home`."""
    return (
        isinstance(function, FunctionType)
        and function.__code__.co_qualname.startswith(_MADE_BY_DATACLASSES)
        and function.__globals__ is vars(sys.modules[home])
    )


def _parts(value: object) -> list[object]:
    """The functions in what a class holds; the thing itself where none is known."""
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
    """True if a class attribute is called, not read."""
    wrapped = isinstance(value, property | staticmethod | classmethod | functools.cached_property)
    return wrapped or (callable(value) and not isinstance(value, type))


def _is_of_python(owner: type) -> bool:
    home = owner.__module__.split(".")[0]
    return home == "builtins" or (home in sys.stdlib_module_names and home != "__main__")


def _is_bound(found: object, value: object, name: str) -> bool:
    own = getattr(type(value), name, None)
    return isinstance(found, MethodType) and found.__self__ is value and found.__func__ is own
