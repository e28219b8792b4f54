"""Evaluates the part of Go's text/template that exported Modelfiles use, by its language rules."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
Node = tuple[str, str, list[Any], list[Any]]  # kind, argument, body, else


def render_go(template: str, system: str, messages: Sequence[Mapping[str, str]]) -> str:
    """What Ollama writes for a request: .System, and .Messages with Role and Content."""
    data = {"System": system, "Messages": [{"Role": m["role"], "Content": m["content"]} for m in messages]}
    nodes, rest = _parse(re.split(_ACTION, template), ())
    assert rest == ""
    variables: dict[str, Any] = {}
    return _run(nodes, data, variables)


def _parse(parts: list[str], ends: tuple[str, ...]) -> tuple[list[Any], Any]:
    """Nodes up to an action of `ends`; `parts` alternates text and action, and is used up."""
    nodes: list[Any] = []
    while parts:
        nodes.append(("text", parts.pop(0)))
        if not parts:
            break
        action = parts.pop(0).strip()
        word, _, argument = action.partition(" ")
        if word in ("end", "else"):
            assert ends, action
            return nodes, action
        if word in ("if", "range"):
            nodes.append(_block(parts, word, argument))
        else:
            nodes.append(("action", action))
    assert not ends, "a block has no end"
    return nodes, ""


def _block(parts: list[str], kind: str, argument: str) -> Node:
    body, closing = _parse(parts, ("end", "else"))
    other: list[Any] = []
    if closing.startswith("else if "):
        other = [_block(parts, "if", closing.removeprefix("else if "))]
    elif closing == "else":
        other, closing = _parse(parts, ("end",))
        assert closing == "end"
    return (kind, argument, body, other)


def _run(nodes: list[Any], dot: Any, variables: dict[str, Any]) -> str:
    written = []
    for node in nodes:
        if node[0] == "text":
            written.append(node[1])
        elif node[0] == "action":
            written.append(_action(node[1], dot, variables))
        elif node[0] == "if":
            written.append(_run(node[2] if _value(node[1], dot, variables) else node[3], dot, variables))
        else:
            written += [_run(node[2], item, variables) for item in _value(node[1], dot, variables)]
    return "".join(written)


def _action(text: str, dot: Any, variables: dict[str, Any]) -> str:
    found = re.fullmatch(r"(\$\w+) (:?=) (.+)", text)
    if found is None:
        return str(_value(text, dot, variables))
    name, sign, value = found.groups()
    assert (sign == "=") == (name in variables), f"{name} is declared once, and before it is set"
    variables[name] = _value(value, dot, variables)
    return ""


def _value(text: str, dot: Any, variables: dict[str, Any]) -> Any:
    if text.startswith("eq "):
        left, right = text.removeprefix("eq ").split(" ", 1)
        return _value(left, dot, variables) == _value(right, dot, variables)
    if text.startswith("."):
        return dot[text[1:]]
    if text.startswith("$"):
        return variables[text]
    return json.loads(text)  # true, false, and strings of plain characters
