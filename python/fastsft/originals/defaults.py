"""Check that a function's parameters have the default values that its file writes there."""

from __future__ import annotations

import ast
import functools
import sys
import textwrap
import tokenize
from collections.abc import Mapping
from types import FunctionType

from fastsft.originals.source import source_of

_UNKNOWN = object()  # what only running the file would tell, like the result of a call


def has_written_defaults(function: FunctionType, module: str) -> bool:
    """True if `__defaults__` and `__kwdefaults__` are those of the def in the file of `module`.

    Literals and names are compared, other expressions taken as they are. An imported name means what it was
    imported from, whatever the script has put in its place since. Lambdas are not looked at.
    """
    written = _arguments(module, function.__code__.co_firstlineno)
    if written is None or function.__code__.co_name == "<lambda>":
        return True
    names, values = _Names(function.__globals__, module), function.__defaults__ or ()
    by_name = function.__kwdefaults__ or {}
    expected = {
        argument.arg: node
        for argument, node in zip(written.kwonlyargs, written.kw_defaults, strict=True)
        if node is not None
    }
    return (
        len(values) == len(written.defaults)
        and by_name.keys() == expected.keys()
        and all(map(lambda node, value: _agrees(node, value, names), written.defaults, values))
        and all(_agrees(node, by_name[name], names) for name, node in expected.items())
    )


@functools.cache
def _arguments(module: str, line: int) -> ast.arguments | None:
    """The parameters of the def at `line` (of its first decorator); None where there is none."""
    text = _header(source_of(module).lines[line - 1 :])
    for ending in ("", "\n pass"):
        try:
            found = ast.parse(textwrap.dedent(text).rstrip() + ending).body
        except SyntaxError:
            continue
        if len(found) == 1 and isinstance(found[0], ast.FunctionDef | ast.AsyncFunctionDef):
            return found[0].args
    return None


def _header(lines: list[str]) -> str:
    """The decorators and the line of a def that `lines` begin with."""
    is_inside = False
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            is_inside = is_inside or token.string == "def"
            if is_inside and token.type == tokenize.NEWLINE:
                return "".join(lines[: token.end[0]])
    except (tokenize.TokenError, SyntaxError, StopIteration):
        pass
    return ""


class _Names:
    """The values of the names of a file."""

    def __init__(self, now: Mapping[str, object], module: str) -> None:
        self._now, self._imports = now, source_of(module).imports

    def get(self, name: str) -> object:
        """The value; _UNKNOWN without one."""
        for home, original in self._imports.get(name, ()):
            there = vars(sys.modules.get(home, object))
            if original in there:
                return there[original]
        return self._now.get(name, _UNKNOWN)


def _agrees(node: ast.expr, value: object, names: _Names) -> bool:
    expected = _value(node, names)
    if expected is _UNKNOWN or expected is value:
        return True
    return type(expected) is type(value) and bool(expected == value)


def _value(node: ast.expr, names: _Names) -> object:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        return _UNKNOWN if owner is _UNKNOWN else getattr(owner, node.attr, _UNKNOWN)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN
