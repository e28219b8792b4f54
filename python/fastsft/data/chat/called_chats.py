"""Places of replies in chats with tools, calls or thoughts, found once for all chats of one form.

Part of the process that renders (`render.py`): imports nothing but jinja2 and the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from fastsft.data.chat.asked_chat import THOUGHTS, Chat
from fastsft.data.chat.pieces import moved_spans, place_contents
from fastsft.data.chat.reply_spans import Found, Reply, kept_length
from fastsft.data.chat.sandbox import Fatal, JsonTexts, MarkedList, MarkedObject, Refused
from fastsft.data.chat.skeletons import Marks, Skeleton, Skeletons

_TEXTS = frozenset(("content", "name", "arguments", "description", *THOUGHTS))
_IDS = frozenset(("id", "tool_call_id"))
_OPEN = frozenset(("tools", "tool_calls", "function"))  # whose parts templates ask for
_MOST_FORMS = 1 << 10
_LONGEST_FORM = 1 << 14  # characters
_MOST_MISSES = 64  # of a template whose texts have never been those of a skeleton


class CalledChats:
    """Finds replies by skeletons of chats with marks in the place of texts, and of objects that the
    template writes as JSON.

    texts: the template's filter `tojson`.
    """

    def __init__(self, skeletons: Skeletons, marks: Marks, texts: JsonTexts) -> None:
        self._skeletons, self._marks, self._texts = skeletons, marks, texts
        self._forms: dict[str, bool] = {}  # that were seen; False: of which no skeleton serves
        self._tools = _MarkedTools()  # of the last chat
        self._hits = self._misses = 0

    def find(self, chat: Chat, text: str, wanted: list[int]) -> Found | None:
        """The places of the replies `wanted` in the text of the chat.

        None where no skeleton tells: for the first chat of a form, for replies without a place, and where the
        text is not the skeleton with the chat's values.
        """
        if self._misses >= _MOST_MISSES and not self._hits:
            return None
        marked, values, form = self._marked(chat)
        if not self._serves(form):
            return None
        try:
            skeleton = self._skeletons.get(form, marked, wanted)
        except (Refused, Fatal):
            self._forms[form] = False
            return None
        found = self._moved(skeleton, values, text, wanted)
        self._hits, self._misses = self._hits + bool(found), self._misses + (not found)
        return found

    def _marked(self, chat: Chat) -> tuple[Chat, list[Any], str]:
        """The chat of marks, the values of their numbers, and the text that all chats of its form share."""
        if chat.tools is not self._tools.given:
            self._tools = _MarkedTools() if chat.tools is None else _mark_tools(chat.tools, self._marks)
        tools = self._tools
        marked = _Marked(self._marks, list(tools.values))
        messages = [{name: marked.of(name, each) for name, each in one.items()} for one in chat.messages]
        form = f"{json.dumps(messages, ensure_ascii=False)}{tools.text}"
        return chat._replace(messages=messages, tools=tools.marked), marked.values, form

    def _serves(self, form: str) -> bool:
        """True for a form that was seen before: a skeleton costs as much as a chat without one."""
        serves = self._forms.get(form)
        if serves is None and len(form) <= _LONGEST_FORM:
            if len(self._forms) == _MOST_FORMS:
                self._forms.clear()
            self._forms[form] = True
        return serves or False

    def _moved(self, skeleton: Skeleton, values: list[Any], text: str, wanted: list[int]) -> Found | None:
        replies = [reply for i in wanted if isinstance(reply := skeleton.found[i], Reply)]
        if len(replies) < len(wanted) or any(piece.content >= len(values) for piece in skeleton.pieces):
            return None  # data that looks like a mark
        texts = place_contents(skeleton.pieces, lambda number: self._written(values[number]), text)
        if texts is None:
            return None
        spans = moved_spans(skeleton.pieces, texts, [(reply.begin, reply.end) for reply in replies])
        found: Found = {}
        for i, (begin, end), (*_, rest) in zip(wanted, spans, replies, strict=True):
            if rest and kept_length(rest, text[begin : begin + len(rest)]):
                return None
            found[i] = Reply(begin, end, rest)
        return found

    def _written(self, value: Any) -> Iterator[str]:
        """The texts that the template may have written of a value."""
        if isinstance(value, str):
            yield value
            yield json.dumps(value, ensure_ascii=False)[1:-1]
        else:
            yield from self._texts.of(value)


class _Marked:
    """Values with marks in their place, of which only the kinds are left.

    values: by the numbers of their marks. White space around texts, empty objects and numbers stay: templates
    look at them.
    """

    def __init__(self, marks: Marks, values: list[Any]) -> None:
        self._marks = marks
        self._ids: dict[str, str] = {}  # templates compare them
        self.values = values

    def of(self, name: str, value: Any) -> Any:
        if type(value) is str:
            if name in _IDS:
                return self._ids.get(value) or self._ids.setdefault(value, self._mark(value, len(value)))
            core = value.strip() if name in _TEXTS else ""
            return value.replace(core, self._mark(core), 1) if core else value
        if type(value) is dict and value:
            mark = self._mark(value)
            parts = {key: self.of(key, each) for key, each in value.items()} if name in _OPEN else None
            return MarkedObject(mark, parts or {mark: mark})
        if type(value) is list and value:
            mark = self._mark(value)
            # A part of a list is as open as the list.
            return MarkedList(mark, [self.of(name, each) for each in value] if name in _OPEN else [mark])
        return value

    def _mark(self, value: Any, size: int = 0) -> str:
        self.values.append(value)
        return self._marks.of(len(self.values) - 1, size)


class _MarkedTools(NamedTuple):
    """The tools that many chats share. text: of the same form."""

    given: list[Any] | None = None
    marked: Any = None
    values: tuple[Any, ...] = ()
    text: str = "null"


def _mark_tools(tools: list[Any], marks: Marks) -> _MarkedTools:
    values: list[Any] = []
    marked = _Marked(marks, values).of("tools", tools)
    return _MarkedTools(tools, marked, tuple(values), json.dumps(marked, ensure_ascii=False))
