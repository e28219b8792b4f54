"""Find the texts that a chat template writes around the contents of users, replies and system messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastsft.data.chat.ollama.marked import (
    TOOLS,
    Found,
    Jinja,
    Message,
    Units,
    common_front,
    reply,
    split,
    system,
    turns,
    user,
    without_back,
    without_front,
)


class Refused(ValueError):
    """The template cannot be written for Ollama; the message says why."""


class Place(NamedTuple):
    """The place of a user's message. has_tools, has_system: whether the conversation has them.

    is_first: the first user's message; is_last_user: the last one; is_last: the last message of all.
    """

    has_tools: bool
    has_system: bool
    is_first: bool
    is_last_user: bool
    is_last: bool


@dataclass(frozen=True)
class Turns:
    """The texts around contents. Each content is in the units of the text before it.

    fronts: the text before all messages, by (has_tools, has_system). before_user: the text before a user's
    content and the content, by place. after_user: the text that ends a user's message. reply: the text that
    begins a reply, and its content. after_reply: the text that ends it. prompt: the text that begins a reply
    to generate. later: a system message after the first message; None if the template takes none there.
    tools_refused: why tools are not taken although the template writes them; "" otherwise.
    """

    fronts: dict[tuple[bool, bool], Units]
    before_user: dict[Place, Units]
    after_user: Units
    reply: Units
    after_reply: Units
    prompt: Units
    later: Units | None
    takes_system: bool
    takes_tools: bool
    tools_refused: str


class _Gaps(NamedTuple):
    """The texts between a conversation's contents, which the contents follow."""

    texts: list[Units]
    marks: list[Found]


def find_turns(jinja: Jinja) -> Turns:
    """Find the texts. Refused if they depend on more than Ollama's template can see."""
    plain = jinja.units(turns(1))
    if plain is None:
        raise Refused(f"it refuses a plain conversation: {jinja.failure}")
    takes_system = jinja.units([system(), *turns(1)]) is not None
    after_reply = _after_reply(jinja)
    before: dict[Place, Units] = {}
    for has_system in (False, True)[: 1 + takes_system]:
        before |= _before_users(jinja, False, has_system, after_reply)
    tools_refused = ""
    with_tools = jinja.units(turns(1), tools=TOOLS)
    takes_tools = with_tools is not None and with_tools != plain
    if takes_tools:
        try:
            for has_system in (False, True)[: 1 + takes_system]:
                before |= _before_users(jinja, True, has_system, after_reply)
        except Refused as error:
            takes_tools, tools_refused = False, str(error)
    if not takes_system:
        before |= {place._replace(has_system=True): _folded(place, text) for place, text in before.items()}
    after_user, replied, prompt = _around_reply(jinja)
    later = _later(jinja, after_reply, before[Place(False, False, False, True, True)])
    return Turns(
        *_divided(before), after_user, replied, after_reply, prompt, later, takes_system, takes_tools,
        tools_refused,
    )  # fmt: skip


def _folded(place: Place, text: Units) -> Units:
    """Return a user's message with the system text before the content, if it is the first."""
    return (*text[:-1], Found("system", 0, ""), *"\n\n", text[-1]) if place.is_first else text


def _gaps(jinja: Jinja, count: int, has_tools: bool = False, has_system: bool = False) -> _Gaps:
    """Return a conversation's texts; with a prompt if it ends with a user's message."""
    messages = [*([system()] if has_system else []), *turns(count)]
    tools = TOOLS if has_tools else None
    units = jinja.units(messages, tools=tools, prompt=count % 2 == 1)
    names = [(("reply", "user")[1 - i % 2], i // 2 + 1) for i in range(count)]
    parts = None if units is None else split(units, *names)
    if parts is None:
        raise Refused(jinja.failure or "it changes or leaves out what messages say")
    return _Gaps(*parts)


def _after_reply(jinja: Jinja) -> Units:
    """Return the text that ends a reply, whatever follows."""
    return common_front([_gaps(jinja, 2).texts[-1], _gaps(jinja, 3).texts[2]])


def _before_users(jinja: Jinja, has_tools: bool, has_system: bool, after_reply: Units) -> dict[Place, Units]:
    """Return the text before each user's content, with the content, by place."""
    found: dict[Place, Units] = {}
    for count in (1, 2, 3, 4, 5):
        texts, marks = _gaps(jinja, count, has_tools, has_system)
        for i in range(0, count, 2):
            text: Units | None = texts[i] if i == 0 else without_front(texts[i], after_reply)
            if text is None:
                raise Refused("what ends a reply depends on the next message")
            is_last = i == count - 1
            place = Place(has_tools, has_system, i == 0, i + 2 >= count, is_last)
            written = (*text, marks[i]._replace(number=0))
            if TOOLS[0]["function"]["name"] in "".join(unit for unit in text if isinstance(unit, str)):
                raise Refused("it writes tools in a form of its own")
            if found.setdefault(place, written) != written:
                raise Refused("what it writes around a message depends on more than the role")
    return found


def _divided(before: dict[Place, Units]) -> tuple[dict[tuple[bool, bool], Units], dict[Place, Units]]:
    """Separate what is written before all messages from what begins the first user's message."""
    fronts: dict[tuple[bool, bool], Units] = {}
    divided = dict(before)
    for has_tools, has_system in {place[:2] for place in before}:
        firsts = [place for place in before if place[:2] == (has_tools, has_system) and place.is_first]
        cuts = {
            place: without_back(before[place], before[place._replace(is_first=False)]) for place in firsts
        }
        found = set(cuts.values())
        if len(found) == 1 and None not in found:
            front = next(iter(cuts.values()))
            fronts[has_tools, has_system] = front or ()
            divided |= {place: before[place._replace(is_first=False)] for place in firsts}
        else:
            fronts[has_tools, has_system] = ()
    return fronts, divided


def _around_reply(jinja: Jinja) -> tuple[Units, Units, Units]:
    """Return the text that ends a user's message, a reply's beginning with its content, and the prompt."""
    replied, mark = _gaps(jinja, 4).texts[1], _gaps(jinja, 4).marks[1]
    prompt = _gaps(jinja, 1).texts[-1]
    ended = jinja.units(turns(1), prompt=False)
    parts = None if ended is None else split(ended, ("user", 1))
    after = common_front([replied, prompt, *([parts[0][-1]] if parts else [])])
    return after, (*replied[len(after) :], mark._replace(number=0)), prompt[len(after) :]


def _later(jinja: Jinja, after_reply: Units, before_user: Units) -> Units | None:
    """Return a system message after a reply: the text before it, its content, and the text after it."""
    messages: Sequence[Message] = [user(), reply(), system("later"), user(2)]
    units = jinja.units(messages)
    parts = None if units is None else split(units, ("reply", 1), ("later", 1), ("user", 2))
    if parts is None:
        return None
    (_, before, after, _), marks = parts
    begin = without_front(before, after_reply)
    end = without_back((*after, marks[-1]._replace(number=0)), before_user)
    return None if begin is None or end is None else (*begin, marks[1], *end)
