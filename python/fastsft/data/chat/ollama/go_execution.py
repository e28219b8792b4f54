"""Execute a Go template as Ollama does, with the functions that exported Modelfiles call."""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastsft.data.chat.ollama.go_syntax import (
    Assign,
    Call,
    Continue,
    Expression,
    GoTemplate,
    If,
    Include,
    Literal,
    Nodes,
    Path,
    Print,
    Range,
    parse,
)

_ESCAPED = {code: f"\\u{code:04x}" for code in (*map(ord, "<>&"), 0x2028, 0x2029)}


class Struct(dict[str, Any]):
    """A struct of Go. Its items are the fields by their names in Go; plain: its JSON value."""

    def __init__(self, plain: Any, **fields: Any) -> None:
        super().__init__(fields)
        self.plain = plain


def render_go(template: str | GoTemplate, data: Mapping[str, Any], day: str = "") -> str:
    """Return the text that a template writes for `data`. day: today, in ISO form.

    Strings are bytes inside, because Go's `len`, `slice` and `index` count bytes. ValueError if the template
    cannot be executed.
    """
    parsed = parse(template) if isinstance(template, str) else template
    frame = _Frame(parsed, data, day)
    try:
        return b"".join(frame.run(parsed.body)).decode()
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"a Go template: {type(error).__name__}: {error}") from error


class _Ended(Exception):
    """`continue` in an iteration."""


class _Frame:
    """The execution of a template or of a defined one, with its dot and its variables."""

    def __init__(self, template: GoTemplate, data: Any, day: str) -> None:
        self._template, self._day = template, day
        self._dot = data
        self._scopes: list[dict[str, Any]] = [{"$": data}]

    def run(self, nodes: Nodes) -> Iterator[bytes]:
        """Yield the nodes' text, in a scope of its own."""
        self._scopes.append({})
        try:
            for node in nodes:
                match node:
                    case bytes():
                        yield node
                    case Print(value):
                        yield _written(self._value(value))
                    case Assign():
                        self._assign(node)
                    case If(condition, body, otherwise):
                        yield from self.run(body if self._value(condition) else otherwise)
                    case Range():
                        yield from self._range(node)
                    case Include(name, value):
                        yield self._included(name, self._value(value))
                    case Continue():
                        raise _Ended
        finally:
            self._scopes.pop()

    def _included(self, name: str, value: Any) -> bytes:
        key, known = (name, _json(value)), self._template.known
        if key not in known:
            inner = _Frame(self._template, value, self._day)
            known[key] = b"".join(inner.run(self._template.defined[name]))
        return known[key]

    def _assign(self, node: Assign) -> None:
        scope = self._scopes[-1] if node.declares else self._scope_of(node.name)
        scope[node.name] = self._value(node.value)

    def _range(self, node: Range) -> Iterator[bytes]:
        value, dot = self._value(node.value), self._dot
        depth = len(self._scopes)
        for index, item in enumerate(range(value) if isinstance(value, int) else value or ()):
            self._dot = item
            given = (index, item)[-len(node.names) :] if node.names else ()
            self._scopes.append(dict(zip(node.names, given, strict=True)))
            with contextlib.suppress(_Ended):
                yield from self.run(node.body)
            del self._scopes[depth:]
        self._dot = dot

    def _value(self, node: Expression) -> Any:
        match node:
            case Literal(value):
                return value
            case Path(base, fields):
                return _field(self._base(base), fields)
            case Call("and" | "or" as name, arguments):
                return self._decided(name == "or", arguments)
            case Call("currentDate", _):
                return self._day.encode()
            case Call(name, arguments):
                if name not in _FUNCTIONS:
                    raise ValueError(f"a Go template: no function {name}")
                return _FUNCTIONS[name](*map(self._value, arguments))

    def _decided(self, by: bool, arguments: Sequence[Expression]) -> Any:
        """Return the first value whose truth is `by`, or the last value."""
        value: Any = None
        for argument in arguments:
            value = self._value(argument)
            if bool(value) == by:
                break
        return value

    def _base(self, base: str | Expression | None) -> Any:
        if isinstance(base, str):
            return self._scope_of(base)[base]
        return self._dot if base is None else self._value(base)

    def _scope_of(self, name: str) -> dict[str, Any]:
        """Return the innermost scope that declares a variable."""
        found = [scope for scope in self._scopes if name in scope]
        if not found:
            raise ValueError(f"a Go template: {name} is not declared")
        return found[-1]


def _field(value: Any, fields: Sequence[str]) -> Any:
    for name in fields:
        value = value[name] if isinstance(value, Struct) else value.get(name)
    return value.encode() if isinstance(value, str) else value


def _written(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return str(value).lower().encode()
    if isinstance(value, int):
        return str(value).encode()
    raise TypeError(f"expected a string or a number to write, got {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Return the value that Go's JSON encoder sees: structs as they are declared, maps sorted by key."""
    if isinstance(value, Struct):
        return value.plain
    if isinstance(value, bytes):
        return value.decode()
    return sorted_maps(value)


def sorted_maps(value: Any) -> Any:
    """Return a JSON value with the keys of all objects sorted, as Go writes maps."""
    if isinstance(value, dict):
        return {name: sorted_maps(value[name]) for name in sorted(value)}
    return [sorted_maps(item) for item in value] if isinstance(value, list) else value


def _json(value: Any) -> bytes:
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED).encode()


def _printf(form: bytes, value: bytes) -> bytes:
    """Write `%.<n>s`, with the first n characters of a string, and text around it."""
    found = re.fullmatch(r"([^%]*)%(?:\.(\d+))?s([^%]*)", form.decode())
    if found is None:
        raise ValueError(f"a Go template: no printf of {form.decode()!r}")
    text = value.decode(errors="surrogateescape")
    shown = text if found[2] is None else text[: int(found[2])]
    return f"{found[1]}{shown}{found[3]}".encode(errors="surrogateescape")


def _slice(value: Any, begin: int = 0, end: int | None = None) -> Any:
    stop = len(value) if end is None else end
    if not 0 <= begin <= stop <= len(value):
        raise IndexError(f"slice {begin}:{stop} of {len(value)}")
    return value[begin:stop]


def _index(value: Any, at: int) -> Any:
    return value[at]


_FUNCTIONS: dict[str, Any] = {
    "eq": lambda one, *others: one in others,
    "ne": operator.ne,
    "lt": operator.lt,
    "gt": operator.gt,
    "ge": operator.ge,
    "not": operator.not_,
    "len": len,
    "index": _index,
    "slice": _slice,
    "printf": _printf,
    "json": _json,
}
