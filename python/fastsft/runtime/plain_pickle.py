"""Read pickles, and call only the functions that the caller allows.

`pickle.Unpickler` with a restricted `find_class` still allocates any size that a file claims, and calls
`__setstate__` of every object. This reader supports only the opcodes that build plain containers. If a pickle
uses a name that is not allowed, the reader raises an error before it looks the name up.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20  # the pickle of a state dict with 100,000 tensors has about 15 MB
_MOST_OPCODES = 3_000_000
_MOST_ARGUMENTS = 64
_MOST_FIELDS = 64  # most attributes of an object with a pair of dictionaries as state
_MOST_KEY = 1 << 60  # larger integers can have equal hashes, which make a dictionary slow
_MARK = object()


class PlainPickleError(ValueError):
    """A pickle has an opcode, a name or a structure that plain data does not need."""


class Maker:
    """A function that pickles may call, with untrusted arguments."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, arguments: object) -> object:
        if not isinstance(arguments, tuple) or len(arguments) > _MOST_ARGUMENTS:
            raise PlainPickleError("a call has no tuple of few arguments")
        return self._function(*arguments)


class Inert:
    """A substitute for an object: it keeps the constructor's arguments and the attributes."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.fields: dict[str, Any] = {}
        self.is_built = False


# A function that returns the Maker or the value for a dotted name, or None to refuse the name.
Names = Callable[[str], object]


def read_pickle(
    data: bytes,
    names: Names,
    persistent: Callable[[object], object] | None = None,
    most_bytes: int = MOST_BYTES,
    most_opcodes: int | None = _MOST_OPCODES,
) -> Any:
    """Read a pickle of protocol 2 to 5, which holds one object.

    names: returns the Maker or the value for "module.name", or None to refuse the name. persistent: returns
    the object for a persistent id; None: persistent ids are refused. most_bytes: size limit of `data`.
    most_opcodes: limit of the opcode count; None: no limit. PlainPickleError if the pickle needs more than
    plain data; none of its functions has run by then.
    """
    if len(data) > most_bytes:
        raise PlainPickleError(f"expected a pickle of at most {most_bytes} bytes, got {len(data)}")
    machine = _Machine(names, persistent, most_opcodes)
    try:
        return machine.run(data)
    except PlainPickleError:
        raise
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        AttributeError,
    ) as error:
        raise PlainPickleError(f"{type(error).__name__}: {str(error)[:200]}") from error


class _Machine:
    def __init__(
        self, names: Names, persistent: Callable[[object], object] | None, most_opcodes: int | None
    ) -> None:
        self._names, self._persistent, self._most_opcodes = names, persistent, most_opcodes
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._room = 0

    def run(self, data: bytes) -> Any:
        # Limits the memory for bytes objects: a pickle can encode the same text to bytes many times.
        self._room = 2 * len(data)
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if self._most_opcodes is not None and number > self._most_opcodes:
                raise PlainPickleError(f"expected at most {self._most_opcodes} opcodes")
            if opcode.name == "STOP":
                break
            if opcode.name in _PUSH:
                self._stack.append(argument)
            elif opcode.name in _CONSTANTS:
                self._stack.append(_CONSTANTS[opcode.name])
            elif (handle := _HANDLERS.get(opcode.name)) is not None:
                handle(self, argument)
            elif opcode.name not in _IGNORED:
                raise PlainPickleError(f"it has the opcode {opcode.name}, which plain data does not need")
        if len(self._stack) != 1:
            raise PlainPickleError(f"expected one object, got {len(self._stack)}")
        return self._pop()

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise PlainPickleError("a mark in the place of a value")
        return value

    def _pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            items.append(value)
        items.reverse()
        return items

    def _mark(self, _: object) -> None:
        self._stack.append(_MARK)

    def _empty_dict(self, _: object) -> None:
        self._stack.append({})

    def _empty_list(self, _: object) -> None:
        self._stack.append([])

    def _put(self, index: Any) -> None:
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def _get(self, index: Any) -> None:
        self._stack.append(self._memo[index])

    def _tuple(self, _: object) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _short_tuple(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(values)))

    def _append(self, _: object) -> None:
        self._extend([self._pop()])

    def _appends(self, _: object) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise PlainPickleError(f"items for a {type(self._stack[-1]).__name__} instead of a list")
        self._stack[-1].extend(items)

    def _set_item(self, _: object) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def _set_items(self, _: object) -> None:
        self._set(self._pop_to_mark())

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise PlainPickleError(f"keys and values for a {type(target).__name__} instead of a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_checked_key(key)] = value

    def _global(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(self._found(module, name))

    def _stack_global(self, _: object) -> None:
        name, module = self._pop(), self._pop()
        self._stack.append(self._found(module, name))

    def _found(self, module: object, name: object) -> object:
        dotted = f"{module}.{name}"
        value = self._names(dotted)
        if value is None:
            raise PlainPickleError(f"it names {dotted[:200]}, which plain data does not need")
        return value

    def _call(self, _: object) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Maker):
            raise PlainPickleError(f"it calls a {type(function).__name__}, which is not callable here")
        made = function(arguments)
        if isinstance(made, bytes):
            self._room -= len(made)
            if self._room < 0:
                raise PlainPickleError("it makes more bytes than it has")
        self._stack.append(made)

    def _build(self, _: object) -> None:
        """Set the attributes of an Inert object. A dictionary's state, such as `_metadata`, is ignored."""
        state, target = self._pop(), self._stack[-1]
        if isinstance(target, Inert):
            if target.is_built:
                raise PlainPickleError("an object has two states")
            parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
            dictionaries = [part for part in parts if isinstance(part, dict)]
            if len(dictionaries) == 2 and sum(map(len, dictionaries)) <= _MOST_FIELDS:
                dictionaries = [dictionaries[0] | dictionaries[1]]
            # The dictionary is not copied, because thousands of objects may share a large dictionary.
            target.fields = dictionaries[0] if dictionaries else {}
            target.arguments, target.is_built = (*target.arguments, state), True
        elif type(target) is not dict:
            raise PlainPickleError(f"a state for a {type(target).__name__}")

    def _persistent_id(self, _: object) -> None:
        if self._persistent is None:
            raise PlainPickleError("it refers to objects outside of it")
        self._stack.append(self._persistent(self._pop()))


def _checked_key(key: Any) -> Hashable:
    """Return `key` if it hashes quickly. PlainPickleError for other keys, such as nested tuples."""
    if key is None or isinstance(key, str | Inert) or (isinstance(key, int) and abs(key) < _MOST_KEY):
        return key
    raise PlainPickleError(f"a dictionary has a {type(key).__name__} as a key")


_PUSH = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_IGNORED = {"PROTO", "FRAME"}
_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "EMPTY_DICT": _Machine._empty_dict,
    "EMPTY_LIST": _Machine._empty_list,
    "BINPUT": _Machine._put, "LONG_BINPUT": _Machine._put, "MEMOIZE": _Machine._put,
    "BINGET": _Machine._get, "LONG_BINGET": _Machine._get,
    "TUPLE": _Machine._tuple,
    "TUPLE1": lambda machine, _: machine._short_tuple(1),
    "TUPLE2": lambda machine, _: machine._short_tuple(2),
    "TUPLE3": lambda machine, _: machine._short_tuple(3),
    "APPEND": _Machine._append, "APPENDS": _Machine._appends,
    "SETITEM": _Machine._set_item, "SETITEMS": _Machine._set_items,
    "GLOBAL": _Machine._global, "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._call, "NEWOBJ": _Machine._call,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._persistent_id,
}  # fmt: skip


def check_named(path: Path, content: object, kind: type, what: str) -> None:
    """Raise ValueError, with the file's path, unless `content` maps texts to values of the class `kind`.

    what: the name of `kind` for messages ("a tensor").
    """
    plural = what.split(maxsplit=1)[1] + "s"
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a dictionary of {plural}, got {type(content).__name__}")
    for name, entry in content.items():
        if not isinstance(name, str):
            raise ValueError(f"{path}: expected names of {plural}, got {type(name).__name__}")
        if not isinstance(entry, kind):
            raise ValueError(f"{path}: {name!r}: expected {what}, got {type(entry).__name__}")
