"""Render marked conversations, and cut their texts at the marks.

The texts are tuples of units: single characters of the template's own text, and what was found in its place
for a value of the conversation (`Found`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastsft.data.chat.model_template import ModelTemplate

# A mark stands between white space that no template writes, which shows how the template trims a content.
_LEFT, _RIGHT = "\n" * 7 + "\t ", " \t" + "\n" * 7
_MARK = re.compile("\ue010([a-z]+)[.]([0-9]+)\ue011|\ue012([^\ue013]*)\ue013")
_IN_JSON = (json.dumps(_LEFT)[:-1], json.dumps(_RIGHT)[1:])
# The name of each way to write a content, with the text before and after the mark; the longest come first.
_FORMS = {
    "": (_LEFT, _RIGHT),
    "json": _IN_JSON,
    "left_lines": (_LEFT.lstrip("\n"), _RIGHT),
    "right_lines": (_LEFT, _RIGHT.rstrip("\n")),
    "strip_lines": (_LEFT.lstrip("\n"), _RIGHT.rstrip("\n")),
    "right": (_LEFT, ""),
    "left": ("", _RIGHT),
    "strip": ("", ""),
}
_PADDED = {"user", "reply", "system", "later", "result", "thought"}
_JSON_FORMS: dict[str, Callable[[Any], str]] = {
    "json": partial(json.dumps, ensure_ascii=False),
    "json_lines": partial(json.dumps, ensure_ascii=False, indent=4),
    "json_compact": partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    "json_raw": lambda value: _with_raw_texts(value),
}


class Found(NamedTuple):
    """A value in a text.

    kind: the value's name, as `user` or `args`. form: the name of the template in `go_defines.py` that
    writes it so; "" for the value as it is; a date's format. between: the text between two tools.
    """

    kind: str
    number: int
    form: str
    between: tuple[Any, ...] = ()


Units = tuple[str | Found, ...]
Message = dict[str, Any]


def mark(kind: str, number: int = 1) -> str:
    """Return a text that `_MARK` finds. Ids have nine characters, which Mistral's templates require."""
    text = f"\ue010{kind}.{number:0{6 - len(kind) if kind in ('id', 'of') else 1}}\ue011"
    return f"{_LEFT}{text}{_RIGHT}" if kind in _PADDED else text


def user(number: int = 1) -> Message:
    return {"role": "user", "content": mark("user", number)}


def reply(number: int = 1) -> Message:
    return {"role": "assistant", "content": mark("reply", number)}


def system(kind: str = "system") -> Message:
    return {"role": "system", "content": mark(kind)}


def turns(count: int) -> list[Message]:
    """Return `count` messages: user, assistant, user and so on."""
    return [(reply if i % 2 else user)(i // 2 + 1) for i in range(count)]


def tool(number: int) -> dict[str, Any]:
    """Return a tool with the fields that Ollama keeps, in Ollama's order."""
    properties = {"city": {"type": "string", "description": "its name", "enum": ["a", "b"]}}
    parameters = {"type": "object", "required": ["city"], "properties": properties}
    name = f"look_{number}_up"
    return {
        "type": "function",
        "function": {"name": name, "description": 'Look "up".\nNow.', "parameters": parameters},
    }


TOOLS = [tool(1), tool(2)]


def call(number: int = 1, as_text: bool = False) -> dict[str, Any]:
    """Return a call; its arguments are a JSON text if `as_text` is True."""
    arguments = _arguments(number)
    function = {"name": mark("name", number), "arguments": json.dumps(arguments) if as_text else arguments}
    return {"type": "function", "id": mark("id", number), "function": function}


def _arguments(number: int) -> dict[str, Any]:
    return {"city": f"found {number}", "of": [number, {"deep": True}]}


def result(number: int = 1) -> Message:
    content = mark("result", number)
    return {
        "role": "tool",
        "name": mark("of", number),
        "content": content,
        "tool_call_id": mark("id", number + 2),
    }


class Jinja:
    """A chat template that is rendered as `apply_chat_template` does. failure: why the last text is None."""

    def __init__(self, template: ModelTemplate, bos: str) -> None:
        self._template, self._bos = template, bos
        self.day = template.date
        self.failure = ""

    def text(
        self, messages: Sequence[Message], *, tools: Any = None, prompt: bool = True, marks: bool = False,
        **variables: Any,
    ) -> str | None:  # fmt: skip
        """Return a conversation's text without its first BOS, which Ollama's tokenizer adds.

        prompt: with a generation prompt. marks: write a date's format in place of the date. None if the
        template refuses the conversation.
        """
        written, self.failure = self._template.plain_text(
            {
                "messages": list(messages),
                "tools": tools,
                "prompt": prompt,
                "marks_dates": marks,
                "variables": variables,
            }
        )
        return None if self.failure else written.removeprefix(self._bos)

    def units(
        self, messages: Sequence[Message], *, tools: Any = None, prompt: bool = True, **variables: Any
    ) -> Units | None:
        """Return the text of a marked conversation in units; None if it cannot be rendered."""
        text = self.text(messages, tools=tools, prompt=prompt, marks=True, **variables)
        return None if text is None else cut(text)


def cut(text: str) -> Units:
    """Cut a rendered text at its marks."""
    for kind, number, value in _json_values():
        for form, write in _JSON_FORMS.items():
            text = text.replace(write(value), f"\ue010{kind}{form.replace('_', '')}.{number}\ue011")
    units: list[str | Found] = []
    at = 0
    for found in _MARK.finditer(text):
        begin, end, form, kind = found.start(), found.end(), "", found[1]
        if found[3] is not None:
            kind, form = "date", found[3]
        elif kind in _PADDED:
            form, left, right = _form(text, begin, end)
            begin, end = begin - left, end + right
        elif "json" in kind:
            kind, _, form = kind.partition("json")
            form = f"json_{form}" if form else "json"
        units += [*text[at:begin], Found(kind, int(found[2] or 0), form)]
        at = end
    return _with_tool_lists((*units, *text[at:]))


def _with_raw_texts(value: Any) -> str:
    """Return a tool as Mistral's templates write it: name and description are not escaped."""
    if "function" not in value:
        return "\ue014"
    items = (
        f'"{name}": ' + (f'"{one}"' if isinstance(one, str) else json.dumps(one, ensure_ascii=False))
        for name, one in value["function"].items()
    )
    return f'{{"type": "function", "function": {{{", ".join(items)}}}}}'


def _form(text: str, begin: int, end: int) -> tuple[str, int, int]:
    """Return the form in which a content is written, and the lengths of the pads that are left of it."""
    for name, (left, right) in _FORMS.items():
        if text[:begin].endswith(left) and text.startswith(right, end):
            return name, len(left), len(right)
    return "", 0, 0


def _json_values() -> Iterable[tuple[str, int, Any]]:
    for number, one in enumerate(TOOLS, 1):
        yield "tool", number, one
        yield "function", number, one["function"]
    for number in (1, 2):
        yield "args", number, _arguments(number)


def _with_tool_lists(units: Units) -> Units:
    """Replace two tools, and the text between them, by a list of tools."""
    places = [
        i for i, unit in enumerate(units) if isinstance(unit, Found) and unit.kind in ("tool", "function")
    ]
    if len(places) != 2:
        return units
    first, last = places
    one = units[first]
    assert isinstance(one, Found)
    between = units[first + 1 : last]
    return (*units[:first], one._replace(number=0, between=between), *units[last + 1 :])


def split(units: Units, *names: tuple[str, int]) -> tuple[list[Units], list[Found]] | None:
    """Return the texts before, between and after marks, and the marks; None if one is missing."""
    texts, marks, at = [], [], 0
    for kind, number in names:
        place = next((i for i in range(at, len(units)) if _is(units[i], kind, number)), None)
        if place is None:
            return None
        found = units[place]
        assert isinstance(found, Found)
        texts.append(units[at:place])
        marks.append(found)
        at = place + 1
    return [*texts, units[at:]], marks


def _is(unit: str | Found, kind: str, number: int) -> bool:
    return isinstance(unit, Found) and (unit.kind, unit.number) == (kind, number)


def common_front(texts: Sequence[Units]) -> Units:
    """Return the longest common prefix."""
    length = 0
    for units in zip(*texts, strict=False):
        if any(unit != units[0] for unit in units):
            break
        length += 1
    return texts[0][:length]


def common_back(texts: Sequence[Units]) -> Units:
    """Return the longest common suffix."""
    return common_front([text[::-1] for text in texts])[::-1]


def without_front(units: Units, front: Units) -> Units | None:
    """Return the units after `front`; None if they do not begin with it."""
    return units[len(front) :] if units[: len(front)] == front else None


def without_back(units: Units, back: Units) -> Units | None:
    """Return the units before `back`; None if they do not end with it."""
    at = len(units) - len(back)
    return units[:at] if at >= 0 and units[at:] == back else None
