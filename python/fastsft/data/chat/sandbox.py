"""The sandbox that chat templates render in, and how a render ends without a text.

Imports nothing but jinja2 and the standard library: it is part of the rendering process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2.parser import Parser


class Refused(Exception):
    """The template cannot render this conversation."""


class Fatal(Exception):
    """The template cannot be used at all."""


class TimeLimit(BaseException):
    """Raised by the timer inside a render."""


class GenerationBlocks(Extension):
    """`{% generation %}...{% endgeneration %}`: what a template marks as learned, between two marks."""

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
    """The environment that chat templates are written for, with nothing else in it."""

    def __init__(self, date: str, generation_marks: tuple[str, str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlocks])
        self.generation_marks = generation_marks
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: _formatted(date, form)
        self.filters["tojson"] = _to_json

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """An error at once; the sandbox's own way writes nothing in place of what is forbidden."""
        raise SecurityError(f"access to {attribute!r} of {type(obj).__name__}")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _formatted(date: str, form: str) -> str:
    from datetime import datetime

    return datetime.fromisoformat(date).strftime(form)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
