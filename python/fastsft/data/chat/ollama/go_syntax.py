"""Parse the part of Go's text/template that exported Modelfiles use."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_ACTION = re.compile(r'\{\{(- )?((?:"(?:\\.|[^"\\])*"|[^"])*?)( -)?\}\}', re.DOTALL)
_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\$\w*(?:\.\w+)*|(?:\.\w+)+|:=|\w+|[().,=])')
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class Literal:
    """A string, a number, or true or false."""

    value: bytes | int | bool


@dataclass(frozen=True)
class Path:
    """A value and the names of the fields to follow from it.

    base: None for the dot, a variable's name, or an expression in parentheses.
    """

    base: str | Expression | None
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A call of a function."""

    function: str
    arguments: tuple[Expression, ...]


Expression = Literal | Path | Call


@dataclass(frozen=True)
class Print:
    """An action that writes a value."""

    value: Expression


@dataclass(frozen=True)
class Assign:
    """`$name := value`, which declares the variable, or `$name = value`."""

    name: str
    declares: bool
    value: Expression


@dataclass(frozen=True)
class If:
    """`if` with both of its branches."""

    condition: Expression
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True)
class Range:
    """`range` over a list or an integer. names: the variables, at most an index and an item."""

    names: tuple[str, ...]
    value: Expression
    body: Nodes


@dataclass(frozen=True)
class Include:
    """`template "name" value`."""

    name: str
    value: Expression


@dataclass(frozen=True)
class Continue:
    """`continue`, which ends one iteration of a range."""


Node = bytes | Print | Assign | If | Range | Include | Continue
Nodes = tuple[Node, ...]


@dataclass(frozen=True)
class GoTemplate:
    """A parsed template.

    defined: the templates of its `define` blocks, by name. known: texts that these have written, by name and
    value, on which alone they depend.
    """

    body: Nodes
    defined: dict[str, Nodes]
    known: dict[tuple[str, bytes], bytes] = field(default_factory=dict, compare=False)


def parse(text: str) -> GoTemplate:
    """Parse a template. ValueError if the text uses more of the language than this module knows."""
    parser = _Parser(_parts(text))
    body, _ = parser.nodes(())
    return GoTemplate(body, parser.defined)


def _parts(text: str) -> list[str | list[str]]:
    """Return texts and the tokens of actions, in turn, with white space trimmed as `{{- ` and ` -}}` say."""
    parts: list[str | list[str]] = []
    at, trims = 0, False
    for found in _ACTION.finditer(text):
        before = text[at : found.start()]
        before = before.lstrip(_SPACE) if trims else before
        parts += [before.rstrip(_SPACE) if found[1] else before, _tokens(found[2])]
        at, trims = found.end(), bool(found[3])
    rest = text[at:].lstrip(_SPACE) if trims else text[at:]
    if "{{" in rest:
        raise ValueError(f"a Go template: an action has no end: {rest[:40]!r}")
    return [*parts, rest]


def _tokens(action: str) -> list[str]:
    tokens, at, text = [], 0, action.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"a Go template: expected an action, got {text[at:]!r}")
        tokens.append(found[1])
        at = found.end()
    return tokens


class _Parser:
    """A parser that uses up the list of parts."""

    def __init__(self, parts: list[str | list[str]]) -> None:
        self._parts = parts[::-1]
        self.defined: dict[str, Nodes] = {}

    def nodes(self, ends: Sequence[str]) -> tuple[Nodes, list[str]]:
        """Return the nodes up to an action of `ends`, and that action."""
        nodes: list[Node] = []
        while self._parts:
            part = self._parts.pop()
            if isinstance(part, str):
                if part:
                    nodes.append(part.encode())
            elif part[:1] in (["end"], ["else"]):
                if part[0] not in ends:
                    raise ValueError(f"a Go template: an unexpected {part[0]}")
                return tuple(nodes), part
            elif part[:1] == ["define"]:
                body, _ = self.nodes(("end",))
                self.defined[_string(part[1]).decode()] = body
            else:
                nodes.append(self._node(part))
        if ends:
            raise ValueError("a Go template: a block has no end")
        return tuple(nodes), []

    def _node(self, tokens: list[str]) -> Node:
        match tokens:
            case ["continue"]:
                return Continue()
            case ["if", *rest]:
                return self._if(rest)
            case ["range", *rest]:
                names, rest = _declared(rest)
                body, _ = self.nodes(("end",))
                return Range(names, expression(rest), body)
            case ["template", name, *rest]:
                return Include(_string(name).decode(), expression(rest))
            case [name, (":=" | "=") as sign, *rest] if name.startswith("$"):
                return Assign(name, sign == ":=", expression(rest))
        return Print(expression(tokens))

    def _if(self, condition: list[str]) -> If:
        body, closing = self.nodes(("end", "else"))
        otherwise: Nodes = ()
        if closing[:2] == ["else", "if"]:
            otherwise = (self._if(closing[2:]),)
        elif closing == ["else"]:
            otherwise, _ = self.nodes(("end",))
        return If(expression(condition), body, otherwise)


def _declared(tokens: list[str]) -> tuple[tuple[str, ...], list[str]]:
    if ":=" not in tokens:
        return (), tokens
    at = tokens.index(":=")
    return tuple(token for token in tokens[:at] if token != ","), tokens[at + 1 :]


def expression(tokens: Sequence[str]) -> Expression:
    """Parse a function with its arguments, or a single operand."""
    operands, at = [], 0
    while at < len(tokens):
        operand, at = _operand(tokens, at)
        operands.append(operand)
    match operands:
        case [str() as function, *arguments]:
            return Call(function, tuple(Call(one, ()) if isinstance(one, str) else one for one in arguments))
        case [Literal() | Path() | Call() as value]:
            return value
    raise ValueError(f"a Go template: expected a value, got {' '.join(tokens)!r}")


def _operand(tokens: Sequence[str], at: int) -> tuple[Expression | str, int]:
    """Return the operand that begins at `at` (a name for a function), and the position after it."""
    token = tokens[at]
    if token == "(":
        depth, end = 1, at + 1
        while depth:
            depth += {"(": 1, ")": -1}.get(tokens[end], 0)
            end += 1
        inner = expression(tokens[at + 1 : end - 1])
        if end < len(tokens) and re.fullmatch(r"(\.\w+)+", tokens[end]):
            return Path(inner, tuple(tokens[end][1:].split("."))), end + 1
        return inner, end
    if token == ".":
        return Path(None, ()), at + 1
    if token.startswith("."):
        return Path(None, tuple(token[1:].split("."))), at + 1
    if token.startswith("$"):
        name, *fields = token.split(".")
        return Path(name, tuple(fields)), at + 1
    if token.startswith('"'):
        return Literal(_string(token)), at + 1
    if token in ("true", "false"):
        return Literal(token == "true"), at + 1
    return (Literal(int(token)) if token.isdigit() else token), at + 1


def _string(token: str) -> bytes:
    """Return a string of Go. The escapes of exported templates mean the same in JSON."""
    text: str = json.loads(re.sub(r"\\U([0-9a-f]{8})", lambda escape: chr(int(escape[1], 16)), token))
    return text.encode()
