"""Define the sandbox in which chat templates are rendered, and the exceptions that end a rendering."""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2.parser import Parser


_MOST_JSON = 1 << 22  # characters
_MOST_OBJECTS = 1 << 10
_MOST_ATTRIBUTES = 1 << 10
_OF_OBJECTS = frozenset(dir(dict))


class Refused(Exception):
    """The template cannot render a conversation."""


class Fatal(Exception):
    """The template cannot be used at all."""


class TimeLimit(BaseException):
    """A rendering has used up its time. Raised by the timer's signal handler."""


class GenerationBlocks(Extension):
    """The block `{% generation %}...{% endgeneration %}`. It puts marks around its text, which is learned."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_mark", [])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        begin, end = self.environment.generation_marks  # type: ignore[attr-defined]
        return f"{begin}{caller()}{end}"


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandboxed Jinja environment with the functions and filters that transformers offers to templates."""

    def __init__(self, date: str, generation_marks: tuple[str, str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlocks])
        self.generation_marks = generation_marks
        self._safe: dict[tuple[type, str], bool] = {}
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise
        self.marks_dates = False  # True: write a date's format, between marks
        self.globals["strftime_now"] = lambda form: (
            f"\ue012{form}\ue013" if self.marks_dates else _formatted(date, form)
        )
        self.json_texts = JsonTexts()
        self.filters["tojson"] = self.json_texts.write

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up a dictionary's field directly: Jinja would first look for an attribute of the object."""
        if type(obj) is dict and attribute not in _OF_OBJECTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return Jinja's decision from a cache. It depends only on the object's type and the attribute."""
        key = (type(obj), attr)
        is_safe = self._safe.get(key)
        if is_safe is None:
            is_safe = super().is_safe_attribute(obj, attr, value)
            if len(self._safe) < _MOST_ATTRIBUTES:
                self._safe[key] = is_safe
        return is_safe

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Raise SecurityError. By default the sandbox would write "" for a forbidden attribute."""
        raise SecurityError(f"access to {attribute!r} of {type(obj).__name__}")


def _indented(value: object, indent: str, line: str) -> str:
    """Return the text of `json.dumps` with an indent, several times faster than Python's json module.

    line: a line break, followed by the indent of the value itself.
    """
    inside = line + indent
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is dict and value and all(type(name) is str for name in value):
        items = [
            f"{encode_basestring(name)}: {_indented(item, indent, inside)}" for name, item in value.items()
        ]
        return f"{{{inside}{f',{inside}'.join(items)}{line}}}"
    if type(value) is list and value:
        items = [_indented(item, indent, inside) for item in value]
        return f"[{inside}{f',{inside}'.join(items)}{line}]"
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text.replace("\n", line) if "\n" in text else text


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _formatted(date: str, form: str) -> str:
    from datetime import datetime

    return datetime.fromisoformat(date).strftime(form)


class MarkedObject(dict[str, Any]):
    """A dictionary with a mark that stands for its JSON text. Templates cannot access the private attributes.

    parts: the fields that a template may read; None if a template may read no field.
    """

    __slots__ = ("_is_open", "_mark")

    def __init__(self, mark: str, parts: dict[str, Any] | None) -> None:
        super().__init__({mark: mark} if parts is None else parts)
        self._mark, self._is_open = mark, parts is not None


class MarkedList(list[Any]):
    """A list with a mark that stands for its JSON text. parts: the items; None if none may be read."""

    __slots__ = ("_is_open", "_mark")

    def __init__(self, mark: str, parts: list[Any] | None) -> None:
        super().__init__([mark] if parts is None else parts)
        self._mark, self._is_open = mark, parts is not None


class JsonTexts:
    """The filter `tojson` with a cache, because chats are rendered repeatedly and have the same tools.

    Cached texts stay valid because a template cannot change an object in the sandbox.
    """

    def __init__(self) -> None:
        self._known: dict[
            tuple[object, ...], tuple[object, str]
        ] = {}  # the values keep the objects alive, because keys contain object ids
        self._size = 0  # characters in all texts

    def write(
        self, value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any
    ) -> str:
        if type(value) not in (dict, list):
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
        key = (id(value), ensure_ascii, indent, *map(str, options.items()))
        cached = self._known.get(key)
        if cached is not None:
            return cached[1]
        if type(indent) is int and indent > 0 and not ensure_ascii and not options:
            text = _indented(value, " " * indent, "\n")
        else:
            text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
        if self._size + len(text) > _MOST_JSON or len(self._known) == _MOST_OBJECTS:
            self._known, self._size = {}, 0
        self._known[key] = (value, text)
        self._size += len(text)
        return text
