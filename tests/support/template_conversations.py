"""Conversations of every kind that chat templates write: plain, system texts, tools, thoughts, and mixed.

No text of a user or a tool is in a reply, and no reply in another text.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def says(text: str, thoughts: str = "", calls: list[Message] | None = None) -> Message:
    more = {"reasoning_content": thoughts} if thoughts else {}
    return {"role": "assistant", "content": text, **more, **({"tool_calls": calls} if calls else {})}


def call(name: str, arguments: dict[str, Any], number: int = 1) -> Message:
    return {"id": f"callnum0{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def gives(text: str, name: str = "weather", number: int = 1) -> Message:
    return {"role": "tool", "content": text, "name": name, "tool_call_id": f"callnum0{number}"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"The {name}.", "parameters": parameters},
    }


TOOLS = [
    tool(
        "weather",
        city={"type": "string", "description": "its name"},
        unit={"type": "string", "enum": ["C", "F"], "description": "u"},
    ),
    tool("compute", x={"type": "number", "description": "a number"}),
]
_ROME, _OSLO = call("weather", {"city": "Rome"}), call("weather", {"city": "Oslo", "unit": "C"}, 2)
_NESTED = call("compute", {"x": 2.5, "of": {"é": [1, None, True]}, "text": 'a "quoted"\nline'})
_ASK, _RESULT, _SUN = user("How is Italy?"), gives("sunny 21"), says("It shines.")
_CALL, _THINK = says("", calls=[_ROME]), says("", "Must look.", [_ROME])
_MORE = [user("And Norway?"), says("", calls=[_OSLO]), gives("rain", number=2), says("It pours.")]
_MORE_THINK = [
    user("And Norway?"),
    says("", "Look again.", [_OSLO]),
    gives("rain", number=2),
    says("It pours.", "Wet."),
]

_PLAIN: dict[str, list[Message]] = {
    "one": [user("Ping?"), says("Pong.")],
    "two": [user("Ping?"), says("Pong."), user("Tick?"), says("Tock.")],
    "three": [user("Ping?"), says("Pong."), user("Tick?"), says("Tock."), user("Zig?"), says("Zag.")],
    "system": [system("Be terse."), user("Ping?"), says("Pong.")],
    "system_two": [system("Be terse."), user("Ping?"), says("Pong."), user("Tick?"), says("Tock.")],
    "lines": [user("A list?"), says("First:\n\n- x\n- y\n\n```py\nz = 1\n```"), user("Tick?"), says("Tock.")],
    "spaces": [user(" Ping? "), says(" Pong. \n"), user("Tick?"), says("Tock.")],
    "line_break": [user("Ping?"), says("\nPong.")],
    "markup": [user("Markup?"), says("<b>Pong</b> {{ x }} é 你 😀"), user("Tick?"), says("Tock.")],
}
_THOUGHTS: dict[str, list[Message]] = {
    "think": [user("Ping?"), says("Pong.", "A game.")],
    "think_two": [user("Ping?"), says("Pong.", "A game."), user("Tick?"), says("Tock.", "A clock.")],
    "think_first": [user("Ping?"), says("Pong.", "A game."), user("Tick?"), says("Tock.")],
    "think_last": [user("Ping?"), says("Pong."), user("Tick?"), says("Tock.", "A clock.")],
    "think_system": [
        system("Be terse."),
        user("Ping?"),
        says("Pong.", "A game.\n\nYes."),
        user("Tick?"),
        says("Tock."),
    ],
    "think_text": [user("Ping?"), says("<think>\nA game.\n</think>\n\nPong.")],
    "think_text_two": [
        user("Ping?"),
        says("<think>\nA game.\n</think>\n\nPong."),
        user("Tick?"),
        says("<think>\nA clock.\n</think>\n\nTock."),
    ],
}
_CALLS: dict[str, list[Message]] = {
    "tools_unused": [user("Ping?"), says("Pong.")],
    "tools_unused_two": [system("Be terse."), user("Ping?"), says("Pong."), user("Tick?"), says("Tock.")],
    "call": [_ASK, _CALL, _RESULT, _SUN],
    "call_last": [_ASK, _CALL],
    "call_system": [system("Be terse."), _ASK, _CALL, _RESULT, _SUN],
    "call_after_plain": [user("Ping?"), says("Pong."), _ASK, _CALL, _RESULT, _SUN],
    "call_before_plain": [_ASK, _CALL, _RESULT, _SUN, user("Tick?"), says("Tock.")],
    "call_two_turns": [_ASK, _CALL, _RESULT, _SUN, *_MORE],
    "call_chain": [_ASK, _CALL, _RESULT, says("", calls=[_OSLO]), gives("rain", number=2), says("It pours.")],
    "call_parallel": [
        _ASK,
        says("", calls=[_ROME, _OSLO]),
        _RESULT,
        gives("rain", number=2),
        says("It pours."),
    ],
    "call_and_text": [_ASK, says("One moment.", calls=[_ROME]), _RESULT, _SUN],
    "call_nested": [_ASK, says("", calls=[_NESTED]), gives("7", "compute"), _SUN],
    "call_no_arguments": [_ASK, says("", calls=[call("compute", {})]), gives("7", "compute"), _SUN],
    "think_call": [_ASK, _THINK, _RESULT, _SUN],
    "think_call_last": [_ASK, _THINK],
    "think_call_think": [_ASK, _THINK, _RESULT, says("It shines.", "Good news.")],
    "think_call_two_turns": [_ASK, _THINK, _RESULT, says("It shines.", "Good news."), *_MORE_THINK],
    "think_call_chain": [
        _ASK,
        _THINK,
        _RESULT,
        says("", "Then Oslo.", [_OSLO]),
        gives("rain", number=2),
        says("It pours."),
    ],
}

# Name: messages, and tools.
CONVERSATIONS: dict[str, tuple[list[Message], list[dict[str, Any]] | None]] = {
    **{name: (messages, None) for name, messages in (_PLAIN | _THOUGHTS).items()},
    **{name: (messages, TOOLS) for name, messages in _CALLS.items()},
    "call_without_tools": (_CALLS["call"], None),
}
