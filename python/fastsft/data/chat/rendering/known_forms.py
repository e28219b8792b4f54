"""Find the replies' positions once for all chats of the same form.

The form of a chat is the chat with marks (marks.py) in place of its texts and of the objects that templates
write as JSON.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from fastsft.data.chat.rendering.conversation import THOUGHTS, Chat
from fastsft.data.chat.rendering.marks import MARK_BEGIN, Marks, Piece, Trace, filled, moved_spans
from fastsft.data.chat.rendering.reply_spans import (
    Ends,
    Fault,
    Found,
    Reply,
    ReplySpans,
    Written,
    kept_length,
)
from fastsft.data.chat.rendering.sandbox import Fatal, MarkedList, MarkedObject, Refused, TimeLimit

_TEXTS = frozenset(("content", "name", "arguments", "description", *THOUGHTS))
_IDS = frozenset(("id", "tool_call_id"))
_OPEN = frozenset(("tools", "tool_calls", "function"))  # fields whose parts templates read
_MOST = 1 << 24  # most characters in all forms and skeletons
_MOST_MISSES = 64  # after so many failures without a success, skeletons are no longer used


class Skeleton(NamedTuple):
    """The text that a template writes for a chat whose values are replaced by marks.

    chat: the chat with marks. written: the rendered text; pieces: the same text, cut at the marks. trace: the
    template's operations on marks. found: the position of each requested reply, by message number; None if
    other chats of this form may have the reply elsewhere. parts: further texts that were rendered to find the
    replies, by (message count, True with a generation prompt).
    """

    chat: Chat
    written: Written
    pieces: list[Piece]
    trace: Trace
    found: dict[int, Reply | None]
    parts: dict[tuple[int, bool], list[Piece]]

    @property
    def size(self) -> int:
        """The approximate memory use in characters."""
        texts = [self.pieces, *self.parts.values()]
        parts = sum(map(len, texts)) + len(self.found) + len(self.chat.messages)
        return 2 * sum(pieces[-1].end for pieces in texts) + 256 * parts + self.trace.size

    def is_between_marks(self, place: int) -> bool:
        """True if the position `place` of the text is not inside a mark."""
        return not any(piece.content >= 0 and piece.begin < place < piece.end for piece in self.pieces)


class KnownForms:
    """A finder of replies that renders each form only once, with marks in place of texts (`Skeleton`).

    render: renders a chat, and records the template's operations on marks in the `Trace`. ends: the tokens
    that end replies.
    """

    def __init__(self, marks: Marks, render: Callable[[Chat, bool, Trace], Written], ends: Ends) -> None:
        self._marks, self._render, self._ends = marks, render, ends
        self._forms: dict[Hashable, Skeleton | None] = {}  # None: no skeleton can be made
        self._seen: set[Hashable] = set()  # forms with at least one chat that was seen
        self._size = 0  # approximate memory use in characters
        self._tools = _MarkedTools()  # the tools of the last chat
        self._hits = self._misses = 0

    def find(self, chat: Chat, text: str, wanted: list[int]) -> Found | None:
        """Return the positions in `text` of the replies with the message numbers `wanted`.

        None if no skeleton can be used: for the first chat of a form, and if the template treats the chat's
        texts differently from the marks.
        """
        if self._misses >= _MOST_MISSES and not self._hits:
            return None
        marked = None
        if chat.has_more:
            marked, values, form = self._marked(chat)
        else:
            values, form = _plain_form(chat)
        skeleton = self._skeleton(form, chat, marked, len(values), wanted)
        if skeleton is None:
            return None
        replies = self._moved(skeleton, values, text, wanted)
        self._hits, self._misses = self._hits + (replies is not None), self._misses + (replies is None)
        return replies

    def _marked(self, chat: Chat) -> tuple[Chat, list[Any], Hashable]:
        """Return the chat with marks, the replaced values by mark number, and the form as a key."""
        if chat.tools is not self._tools.given:
            self._tools = _MarkedTools() if chat.tools is None else _mark_tools(chat.tools, self._marks)
        tools = self._tools
        marked = _Marked(self._marks, list(tools.values))
        messages = [
            {name: marked.of(name, value) for name, value in message.items()} for message in chat.messages
        ]
        form = f"{json.dumps(messages, ensure_ascii=False)}{tools.text}"
        return chat._replace(messages=messages, tools=tools.marked), marked.values, form

    def _skeleton(
        self, form: Hashable, chat: Chat, marked: Chat | None, count: int, wanted: list[int]
    ) -> Skeleton | None:
        """Return a form's skeleton; None if there is none.

        A skeleton is made only when a form is seen for the second time, because making a skeleton takes
        longer than rendering a chat.
        """
        if form not in self._seen:
            self._make_room(len(str(form)))
            self._seen.add(form)
            return None
        known = self._forms.get(form)
        if form in self._forms and (known is None or all(i in known.found for i in wanted)):
            return known
        made = None
        # If this fails, the caller finds the replies in the chat's own text, and reports a failure there.
        with suppress(Refused, Fatal, TimeLimit, MemoryError, RecursionError), _share_of_time():
            made = self._made(known, marked or self._marked(chat)[0], count, wanted)
        self._make_room(made.size if made else len(str(form)))
        self._seen.add(form)
        self._forms[form] = made
        return made

    def _made(self, known: Skeleton | None, marked: Chat, count: int, wanted: list[int]) -> Skeleton:
        """Make a skeleton that has the replies `wanted`, and also the replies of the skeleton `known`."""
        trace = known.trace if known else Trace(self._marks, count)
        parts = dict(known.parts) if known else {}

        def render(chat: Chat, prompt: bool) -> Written:
            written = self._render(chat, prompt, trace)
            parts[len(chat.messages), prompt] = self._marks.cut(written.text)
            return written

        written = known.written if known else render(marked, False)
        made = Skeleton(marked, written, self._marks.cut(written.text), trace, {}, parts)
        spans = ReplySpans(render, self._ends)
        replies = spans.find(marked, written, [i for i in wanted if not known or i not in known.found])
        made.found.update(known.found if known else {})
        made.found.update((i, _of_all(reply, made)) for i, reply in replies.items())
        return made

    def _make_room(self, size: int) -> None:
        """Count `size` more characters. If memory use would exceed the limit, forget all forms first."""
        if self._size + size > _MOST:
            self._forms, self._seen, self._size = {}, set(), 0
        self._size += size

    def _moved(self, skeleton: Skeleton, values: list[Any], text: str, wanted: list[int]) -> Found | None:
        """Convert the skeleton's replies to positions in `text`.

        None unless `text` is the skeleton's text with `values` in place of the marks, and all recorded
        operations have the same results for these values.
        """
        values = skeleton.trace.values(values)
        texts = filled(skeleton.pieces, values)
        if texts is None or "".join(texts) != text or not skeleton.trace.holds(values):
            return None
        replies = [reply for i in wanted if (reply := skeleton.found[i]) is not None]
        if len(replies) < len(wanted):
            return self._found_in_parts(skeleton, values, text, wanted)
        spans = moved_spans(skeleton.pieces, texts, [(reply.begin, reply.end) for reply in replies])
        moved_replies: Found = {}
        for i, (begin, end), reply in zip(wanted, spans, replies, strict=True):
            moved_replies[i] = moved = reply._replace(begin=begin, end=end)
            if reply.rest and kept_length(reply.rest, text[begin : begin + len(reply.rest)]):
                return None
            if not moved.ends_as(reply, text, skeleton.written.text):
                return None
        return moved_replies

    def _found_in_parts(
        self, skeleton: Skeleton, values: list[Any], text: str, wanted: list[int]
    ) -> Found | None:
        """Find the replies by means of the skeleton's parts, filled with `values`, without rendering."""
        if skeleton.written.blocks is not None:
            return None
        made: dict[tuple[int, bool], Written] = {}

        def render(chat: Chat, prompt: bool) -> Written:
            part = len(chat.messages), prompt
            if part not in made:
                texts = filled(skeleton.parts[part], values)
                if texts is None:
                    raise LookupError
                made[part] = Written("".join(texts))
            return made[part]

        with suppress(LookupError):  # raised if a part is needed that the skeleton does not have
            return ReplySpans(render, self._ends).find(skeleton.chat, Written(text), wanted)
        return None


def _plain_form(chat: Chat) -> tuple[list[Any], Hashable]:
    """Return the values by mark number and the form of a chat that has only roles and contents."""
    form, values = [], []
    for message in chat.messages:
        text = message["content"]
        is_marked = bool(text) and not text.isspace()
        form.append((message["role"], None if is_marked else text))
        if is_marked:
            values.append(text)
    return values, tuple(form)


def _of_all(reply: Reply | Fault, skeleton: Skeleton) -> Reply | None:
    """Return the reply if its position in the skeleton holds for all chats of the form; otherwise None."""
    if isinstance(reply, Fault) or reply.is_late or MARK_BEGIN in reply.rest + reply.after:
        return None
    return reply if all(map(skeleton.is_between_marks, (reply.begin, reply.end))) else None


@contextmanager
def _share_of_time() -> Iterator[None]:
    """Limit the block to half of the time that is left, so that the chat itself can still be rendered."""
    left, _ = signal.getitimer(signal.ITIMER_PROF)
    if left:
        signal.setitimer(signal.ITIMER_PROF, left / 2)
    try:
        yield
    finally:
        if left:
            rest, _ = signal.getitimer(signal.ITIMER_PROF)
            signal.setitimer(signal.ITIMER_PROF, left / 2 + rest)


class _Marked:
    """Replaces values by marks of the same type.

    values: the replaced values, by mark number. Blank texts, empty objects and numbers are not replaced,
    because templates test for them.
    """

    def __init__(self, marks: Marks, values: list[Any]) -> None:
        self._marks = marks
        self._ids: dict[str, str] = {}  # equal ids get equal marks, since templates compare them
        self.values = values

    def of(self, name: str, value: Any) -> Any:
        if type(value) is str:
            if not value or value.isspace():
                return value
            if name in _IDS:
                return self._ids.get(value) or self._ids.setdefault(value, self._mark(value, len(value)))
            return self._mark(value) if name in _TEXTS else value
        if type(value) is dict and value:
            mark = self._mark(value)
            parts = {key: self.of(key, part) for key, part in value.items()} if name in _OPEN else None
            return MarkedObject(mark, parts)
        if type(value) is list and value:
            mark = self._mark(value)
            # The items of a list are treated like the list itself.
            return MarkedList(mark, [self.of(name, part) for part in value] if name in _OPEN else None)
        return value

    def _mark(self, value: Any, size: int = 0) -> str:
        self.values.append(value)
        return self._marks.of(len(self.values) - 1, size)


class _MarkedTools(NamedTuple):
    """Tools with marks. They are kept because many chats have the same tools.

    given: the tools. marked: the tools with marks. values: the replaced values. text: the tools' part of the
    form.
    """

    given: list[Any] | None = None
    marked: Any = None
    values: tuple[Any, ...] = ()
    text: str = "null"


def _mark_tools(tools: list[Any], marks: Marks) -> _MarkedTools:
    values: list[Any] = []
    marked = _Marked(marks, values).of("tools", tools)
    return _MarkedTools(tools, marked, tuple(values), json.dumps(marked, ensure_ascii=False))
