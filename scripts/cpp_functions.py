"""Functions of a C++ file, found by their braces: what is defined and declared outside of function bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from check_layers import Source, blank, closing_brace

TOKEN = re.compile(r"[(){};]")
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)
OPERATOR = re.compile(r"\boperator\s*(?:\(\)|[^\w\s(]+)")
ARGUMENTS, BRACES = "\x01", "\x02"  # what brackets are shortened to
NESTED = re.compile(r"\([^(){}\[\]]*\)|\{[^(){}\[\]]*\}|\[[^(){}\[\]]*\]")
SHORT = {"(": ARGUMENTS, "{": BRACES, "[": " "}
TEMPLATE = re.compile(r"<[^<>]*>")
CALLED_WORDS = re.compile(
    r"\b(?:alignas|decltype|explicit|noexcept|requires|__attribute__|__launch_bounds__)\s*\x01"
)
TYPE_HEAD = re.compile(r"\b(?:class|struct|union)\b[^\x01]*$")
INITIALIZERS = re.compile(r"\x01\s*(?:noexcept\s*)?:(?!:)")
NAME = re.compile(r"(operator\b|~?\w+)\s*\x01")
DECLARATION = re.compile(r"[\w*&>]\s+[*&]*(?:\w+::)*(operator\b|~?\w+)\s*\x01")


@dataclass(frozen=True)
class Function:
    """A function's definition (with a body) or declaration. `lines`: from its name to its closing brace."""

    name: str
    line: int
    lines: int
    defined: bool


def functions(source: Source) -> Iterator[Function]:
    """All of a file, without lambdas and what stands in bodies; bodies that macros open count."""
    code = PREPROCESSOR.sub(lambda match: blank(match[0]), source.code)
    head = position = depth = 0
    while match := TOKEN.search(code, position):
        position = match.end()
        if match[0] in "()":
            depth += 1 if match[0] == "(" else -1
        elif match[0] == "{":
            kind = "value" if depth else kind_of(code[head : match.start()])
            end = position if kind == "scope" else closing_brace(code, match.start()) + 1
            if kind == "function":
                yield found(code, head, match.start(), end)
            head, position = (head if kind == "value" else end), end
        elif not depth:
            if match[0] == ";" and is_declaration(code[head : match.start()]):
                yield found(code, head, match.start(), None)
            head = position


def found(code: str, head: int, opening: int, end: int | None) -> Function:
    name = name_in(flat(code[head:opening]))
    match = re.search(re.escape(name) + (r"\b" if name == "operator" else r"\s*\("), code[head:opening])
    at = head + (match.start() if match else 0)
    return Function(
        name=name,
        line=code.count("\n", 0, at) + 1,
        lines=code.count("\n", at, end or at) + 1,
        defined=end is not None,
    )


def flat(head: str) -> str:
    """What stands before a body, without what is in brackets and without template arguments."""
    head = re.sub(r"\b(?:public|private|protected)\s*:", " ", OPERATOR.sub("operator", head))
    for pattern in (NESTED, TEMPLATE):
        while (shorter := pattern.sub(lambda match: SHORT.get(match[0][0], ""), head)) != head:
            head = shorter
    return CALLED_WORDS.sub(" ", head).strip()


def kind_of(head: str) -> str:
    """What a brace after `head` opens: a `scope` (namespace or class), a `function` or a `value`."""
    text = flat(head)
    if re.match(r"(?:inline\s+)?namespace\b", text) or text == "extern":
        return "scope"
    if re.search(r"\benum\b", text) or "=" in text:
        return "value"
    if TYPE_HEAD.search(text):
        return "scope"
    if name_in(text) in {"", "catch"} or (INITIALIZERS.search(text) and text[-1] not in ARGUMENTS + BRACES):
        return "value"
    return "function"


def is_declaration(head: str) -> bool:
    text = re.sub(r"=\s*(?:0|default|delete)$", "", flat(head))
    if "=" in text or re.match(r"(?:using|typedef|return|static_assert)\b", text):
        return False
    return DECLARATION.search(text) is not None or re.match(r"~?\w+\s*\x01$", text) is not None


def name_in(text: str) -> str:
    match = NAME.search(text)
    return match[1] if match else ""
