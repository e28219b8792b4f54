"""Find the texts that a chat template writes around thoughts, and how its prompt begins them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastsft.data.chat.ollama.calls import Calls
from fastsft.data.chat.ollama.marked import (
    TOOLS,
    Found,
    Jinja,
    Message,
    Units,
    call,
    mark,
    reply,
    result,
    split,
    turns,
    user,
    without_back,
    without_front,
)
from fastsft.data.chat.ollama.turns import Refused, Turns

FIELDS = ("reasoning_content", "thinking", "reasoning")
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class Thoughts:
    """The texts of thoughts.

    field: the name that the template gives them in a message; "" if it writes none. block: thoughts with the
    text around them. content: the content that follows. in_earlier: the template writes the thoughts of
    earlier turns, too. switch: the variable that turns thoughts on and off; "" if there is none. prompts: the
    text that begins a reply, by the switch's value.
    """

    field: str
    block: Units
    content: Units
    in_earlier: bool
    switch: str
    prompts: dict[bool, Units]


def find_thoughts(jinja: Jinja, turns: Turns, calls: Calls | None) -> Thoughts | None:
    """Return the texts; None if the template knows no thoughts. Refused if they cannot be found."""
    switch, prompts = _switched(jinja, turns)
    for name in FIELDS:
        earlier = _block(jinja, turns, {**reply(), name: mark("thought")}, [user(2)], ("reply", 1))
        now = None if calls is None else _in_turn(jinja, turns, calls, name)
        if now or earlier:
            if now and earlier and now != earlier:
                raise Refused("it writes thoughts of earlier turns otherwise")
            block = now or earlier or ()
            return Thoughts(name, block[:-1], block[-1:], earlier is not None, switch, prompts)
    return Thoughts("", (), (), False, switch, prompts) if switch else None


def _switched(jinja: Jinja, found: Turns) -> tuple[str, dict[bool, Units]]:
    for switch in _SWITCHES:
        prompts: dict[bool, Units] = {}
        for value in (False, True):
            variables: dict[str, Any] = {switch: value}
            units = jinja.units(turns(1), **variables)
            parts = units and split(units, ("user", 1))
            prompt = parts and without_front(parts[0][-1], found.after_user)
            if prompt is not None:
                prompts[value] = prompt
        if len(prompts) == 2 and set(prompts.values()) != {found.prompt}:
            return switch, prompts
    return "", {}


def _block(
    jinja: Jinja, found: Turns, thinking: Message, after: list[Message], end: tuple[str, int]
) -> Units | None:
    """Return thoughts with the text around them, and the content that follows; None if not written."""
    tools = TOOLS if "tool_calls" in thinking else None
    units = jinja.units([user(), thinking, *after], tools=tools)
    if units is None or not any(isinstance(unit, Found) and unit.kind == "thought" for unit in units):
        return None
    parts = split(units, ("user", 1), ("thought", 1), end)
    begin = parts and without_front(parts[0][1], (*found.after_user, *found.reply[:-1]))
    if parts is None or begin is None:
        raise Refused("what it writes around thoughts depends on more than the role")
    marks = [one._replace(number=0) for one in parts[1]]
    return (*begin, marks[1], *parts[0][2], marks[2])


def _in_turn(jinja: Jinja, found: Turns, calls: Calls, name: str) -> Units | None:
    """Return the thoughts of a reply with a call, which the template may write only until the next user."""
    calling = {"role": "assistant", "tool_calls": [call(1, calls.as_text)], name: mark("thought")}
    silent = _block(jinja, found, {**calling, "content": ""}, [result()], ("name", 1))
    speaking = (
        _block(jinja, found, {**calling, "content": mark("reply")}, [result()], ("reply", 1))
        if calls.content is not None
        else None
    )
    if silent is None:
        return None
    front = next(i for i, unit in enumerate(calls.calls.each) if isinstance(unit, Found))
    before_call = without_back(silent[:-1], (*calls.calls.begin, *calls.calls.each[:front]))
    if before_call is None or (speaking and speaking[:-1] != before_call):
        raise Refused("it writes thoughts before calls otherwise than before contents")
    return (*before_call, speaking[-1] if speaking else found.reply[-1])
