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
    """Error about a conversation that the template cannot render."""


class Fatal(Exception):
    """Error about a template that cannot be used at all."""


class TimeLimit(BaseException):
    """Exception that the timer raises during a rendering."""


class GenerationBlocks(Extension):
    """The block `{% generation %}...{% endgeneration %}`, which puts marks around its text, since it is
    learned.
    """

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
    """A sandboxed Jinja environment with only the functions and filters that transformers gives chat
    templates.
    """

    def __init__(self, date: str, generation_marks: tuple[str, str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlocks])
        self.generation_marks = generation_marks
        self._safe: dict[tuple[type, str], bool] = {}
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: _formatted(date, form)
        self.json_texts = JsonTexts()
        self.filters["tojson"] = self.json_texts.write

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up a field of a dictionary directly, since jinja would first look for an attribute of the
        object.
        """
        if type(obj) is dict and attribute not in _OF_OBJECTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return jinja's decision from a cache, since it depends only on the object's type and the
        attribute.
        """
        key = (type(obj), attr)
        is_safe = self._safe.get(key)
        if is_safe is None:
            is_safe = super().is_safe_attribute(obj, attr, value)
            if len(self._safe) < _MOST_ATTRIBUTES:
                self._safe[key] = is_safe
        return is_safe

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Raise SecurityError.

        The default sandbox would write nothing for a forbidden attribute, without an error.
        """
        raise SecurityError(f"access to {attribute!r} of {type(obj).__name__}")


def _indented(value: object, indent: str, line: str) -> str:
    """Return the text of `json.dumps` with an indent, several times faster than Python's own pure Python
    code.

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

    parts: the fields that a template may read; None if it may read none.
    """

    __slots__ = ("_is_open", "_mark")

    def __init__(self, mark: str, parts: dict[str, Any] | None) -> None:
        super().__init__({mark: mark} if parts is None else parts)
        self._mark, self._is_open = mark, parts is not None


class MarkedList(list[Any]):
    """A list with a mark that stands for its JSON text. parts: as in `MarkedObject`."""

    __slots__ = ("_is_open", "_mark")

    def __init__(self, mark: str, parts: list[Any] | None) -> None:
        super().__init__([mark] if parts is None else parts)
        self._mark, self._is_open = mark, parts is not None


class JsonTexts:
    """The filter `tojson`, with a cache of the texts, since chats are rendered repeatedly and share tools.

    Cached texts stay valid because a template cannot change an object in the sandbox.
    """

    def __init__(self) -> None:
        self._known: dict[
            tuple[object, ...], tuple[object, str]
        ] = {}  # also keeps the object alive, since its id is in the key
        self._size = 0  # characters of all texts

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
