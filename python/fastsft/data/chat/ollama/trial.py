"""Compare a Go template with the chat template on conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fastsft.data.chat.ollama.go_execution import render_go
from fastsft.data.chat.ollama.go_syntax import parse
from fastsft.data.chat.ollama.go_text import Parts
from fastsft.data.chat.ollama.marked import Jinja, Message
from fastsft.data.chat.ollama.requests import request
from fastsft.data.chat.rendering.marks import common_length

PLAIN, EMPTY, TOOLS, THOUGHTS = "plain", "empty", "tools", "thoughts"
_TEXTS = ("Hello {{ .System }}?", "Hi\nthere.", "And 你 é 😀?", 'Fine """.', "Good {{.")
_SPACED = ("  Hi\t\n", "\n\n Ho \n", "\u00a0x\u3000", "\u2003\x0b<b>\r\n", "\r\n a\n\n b ")
_CITY = {"type": "string", "description": 'its "name"', "enum": ["Łódź", "A & B"]}
_SOME_TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": 'Of a "city".\n',
        "parameters": {
            "type": "object", "required": ["city"],
            "properties": {"city": _CITY, "days": {"type": "number"}}}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time: <h>.", "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip
_ARGUMENTS = (
    {"city": "A & <B>", "days": 2},
    {"list": [1, None, True, {"a": 'q "x"\n\\'}], "none": {}, "some": []},
)


class Probe(NamedTuple):
    """A conversation to compare.

    kind: PLAIN, EMPTY (with an empty system text), TOOLS or THOUGHTS. think: the request's field.
    """

    kind: str
    messages: list[Message]
    tools: list[Any] | None = None
    think: bool | None = None


def differences(parts: Parts, text: str, jinja: Jinja) -> dict[str, str]:
    """Return each conversation kind's first difference; a kind without any is left out.

    Conversations that the chat template refuses are not compared.
    """
    found: dict[str, str] = {}
    template = parse(text)
    for probe in _probes(parts):
        if probe.kind in found:
            continue
        expected = _expected(parts, jinja, probe)
        if expected is None:
            continue
        written = render_go(template, request(probe.messages, probe.tools, probe.think), jinja.day)
        if written != expected:
            at = max(common_length(written, expected) - 20, 0)
            found[probe.kind] = f"{expected[at : at + 60]!r} would be {written[at : at + 60]!r}"
    return found


def _expected(parts: Parts, jinja: Jinja, probe: Probe) -> str | None:
    thoughts = parts.thoughts
    variables = {thoughts.switch: probe.think} if thoughts and probe.think is not None else {}
    field = thoughts.field if thoughts else "reasoning_content"
    as_text = bool(parts.calls and parts.calls.as_text)
    messages = [_given(message, field, as_text) for message in probe.messages]
    return jinja.text(messages, tools=probe.tools, **variables)


def _given(message: Message, field: str, as_text: bool) -> Message:
    given = {field if name == "reasoning_content" else name: value for name, value in message.items()}
    if as_text and "tool_calls" in given:
        given["tool_calls"] = [
            {**one, "function": {**one["function"], "arguments": _text(one["function"]["arguments"])}}
            for one in given["tool_calls"]
        ]  # fmt: skip
    return given


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _probes(parts: Parts) -> Iterator[Probe]:
    takes_system = parts.turns.takes_system
    systems: Sequence[str | None] = (None, "Be 'kind'.", "  Be \n") if takes_system else (None,)
    if takes_system:
        yield Probe(EMPTY, _talk("", _TEXTS[:3]))
    for system in systems:
        for count in (1, 3, 5):
            for texts in (_TEXTS, _SPACED):
                yield Probe(PLAIN, _talk(system, texts[:count]))
        if parts.turns.later:
            yield Probe(PLAIN, [*_talk(system, _TEXTS[:2]), _system("Be \n"), *_talk(None, _TEXTS[2:3])])
        if parts.calls:
            yield from _with_tools(system, parts.calls.takes_several)
    yield from _with_thoughts(parts)


def _with_tools(system: str | None, takes_several: bool) -> Iterator[Probe]:
    for tools in (_SOME_TOOLS, _SOME_TOOLS[1:]):
        for count in (1, 3):
            yield Probe(TOOLS, _talk(system, _TEXTS[:count]), tools)
    for content in ("", "I look."):
        for number in (1, 2)[: 1 + takes_several]:
            calls = _calls(content, number)
            results = [
                _result(i, text) for i, text in enumerate(('{"sun": "é & <1>"}\n', '\tno "one"')[:number])
            ]
            chat = [*_talk(system, _SPACED[:1]), calls, *results]
            yield Probe(TOOLS, chat, _SOME_TOOLS)
            after = [{"role": "assistant", "content": "It is."}, {"role": "user", "content": "And?"}]
            yield Probe(TOOLS, [*chat, *after], _SOME_TOOLS)
            yield Probe(TOOLS, [*chat, *after, _calls("", 1), _result(0, "x")], _SOME_TOOLS)


def _with_thoughts(parts: Parts) -> Iterator[Probe]:
    if not parts.thoughts:
        return
    thinks: Sequence[bool | None] = (None, False, True) if parts.thoughts.switch else (None,)
    thought = {"reasoning_content": "\nI think.\n"} if parts.thoughts.field else {}
    for think in thinks:
        for count in (1, 3):
            yield Probe(THOUGHTS, _talk(None, _TEXTS[:count]), None, think)
        said = {"role": "assistant", "content": "\n So. ", **thought}
        yield Probe(THOUGHTS, [*_talk(None, _TEXTS[:1]), said, *_talk(None, _TEXTS[2:3])], None, think)
        for content in ("", "\nI look.") if parts.calls else ():
            chat = [*_talk(None, _TEXTS[:1]), {**_calls(content, 1), **thought}, _result(0, "x")]
            yield Probe(THOUGHTS, chat, _SOME_TOOLS, think)
            yield Probe(THOUGHTS, [*chat, said, *_talk(None, _TEXTS[:1])], _SOME_TOOLS, think)


def _talk(system: str | None, texts: Sequence[str]) -> list[Message]:
    roles = ("user", "assistant")
    chat = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return chat if system is None else [_system(system), *chat]


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _calls(content: str, number: int) -> Message:
    calls = [
        {"type": "function", "id": f"callid00{i}", "function": {"name": name, "arguments": _ARGUMENTS[i]}}
        for i, name in enumerate(("weather", "now")[:number])
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _result(number: int, text: str) -> Message:
    name = ("weather", "now")[number]
    return {"role": "tool", "name": name, "content": text, "tool_call_id": f"callid00{number}"}
