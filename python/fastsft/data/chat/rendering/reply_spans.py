"""Find the beginning and the end of each learned reply in a rendered chat."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fastsft.data.chat.rendering.conversation import THOUGHTS, Chat, altered
from fastsft.data.chat.rendering.marks import Span, common_length, difference
from fastsft.data.chat.rendering.sandbox import Fatal, Refused

_TAG = re.compile(r"<[^<>\s]*>")
_THOUGHTS = re.compile("think|thought|reason")


class Ends(NamedTuple):
    """The tokens that end replies.

    reply: the token after a reply of text. call: the token after a reply that calls tools; "" if the template
    writes no calls. next_turn: True if the template writes no token after replies, as in GLM-4's template.
    Then `reply` and `call` are the tokens with which the next message begins, that of a user or a tool. Such
    a token is added at a row's end.
    """

    reply: str
    call: str = ""
    next_turn: bool = False

    def of(self, messages: list[dict[str, Any]], reply: int) -> str:
        is_last = reply == len(messages) - 1
        calls = bool(messages[reply].get("tool_calls"))
        if self.next_turn and not is_last:
            calls = messages[reply + 1]["role"] == "tool"
        return (calls and self.call) or self.reply

    def after(self, messages: list[dict[str, Any]]) -> str:
        """Return the end token to add to a row, if the template does not write this token; otherwise ""."""
        ends_with_reply = self.next_turn and messages and messages[-1]["role"] == "assistant"
        return self.of(messages, len(messages) - 1) if ends_with_reply else ""


class Written(NamedTuple):
    """A rendered text. blocks: the spans of its generation blocks; None if the template has no blocks."""

    text: str
    blocks: list[Span] | None = None


class Reply(NamedTuple):
    """The span of a learned reply in a rendered text.

    rest: the end of the generation prompt if the text lacks it. after: the text after the reply; it, too, was
    searched for the last stop token. stops: the tokens that may end the reply. is_late: True if the
    generation block begins after the prompt's end.
    """

    begin: int
    end: int
    rest: str = ""
    after: str = ""
    stops: tuple[str, ...] = ()
    is_late: bool = False

    def ends_as(self, other: Reply, text: str, other_text: str) -> bool:
        """True if this reply and `other` end at the same stop token of the template.

        Both replies have the same text of the template around them. text, other_text: the texts that contain
        the replies.
        """
        if len(self.stops) == 1 and other_text.endswith(self.stops, other.begin, other.end):
            return True  # the reply in `other_text` ends with the last stop token
        stop = other._last_stop(other_text)
        return self._last_stop(text) == (stop if stop < 0 else self.end - self.begin)

    def _last_stop(self, text: str) -> int:
        return _last_stop(text[self.begin : self.end] + self.after, self.stops)


class Fault(NamedTuple):
    """The reason why a reply cannot be located in a text.

    needs_row: True if the reply may be located in a row of its own.
    """

    reason: str
    needs_row: bool = False


Found = dict[int, Reply | Fault]  # by the reply's message number
Render = Callable[[Chat, bool], Written]  # arguments: the chat, and True to add a generation prompt


def split_blocks(text: str, marks: tuple[str, str]) -> Written:
    """Remove the marks around generation blocks from the text, and return the text and the blocks' spans.

    Blocks that are separated only by white space are joined. marks: the marks at the beginning and the end of
    a block.
    """
    begin, end = marks
    first, *others = text.split(begin)
    parts, size = [first], len(first)
    spans: list[Span] = []
    for part in others:
        inside, _, after = part.partition(end)
        if end in after:
            raise Fatal("the chat template writes a generation block inside another")
        begin_at = spans.pop()[0] if spans and not parts[-1].strip() else size
        spans.append((begin_at, size + len(inside)))
        size += len(inside) + len(after)
        parts += [inside, after]
    return Written("".join(parts), spans)


class ReplySpans:
    """A finder of replies in a rendered chat. render: renders a chat. ends: the tokens that end replies."""

    def __init__(self, render: Render, ends: Ends) -> None:
        self._render = render
        self._ends = ends

    def find(self, chat: Chat, written: Written, wanted: list[int]) -> Found:
        """Locate each reply in `wanted` (message numbers); return a Fault if a reply cannot be located.

        A reply can be located if the chat's text begins like the text of a chat that ends with this reply,
        and the latter begins with the reply's prompt.
        """
        return {i: self._find(chat, written, i) for i in wanted}

    def rest_of_prompt(self, chat: Chat, written: Written) -> str:
        """Compare the last reply's prompt with the chat's text, and return the rest of the prompt or "".

        If the two differ before the prompt ends, the rest is the prompt from the last tag before this point
        on. If the text has the whole prompt, or if the reply does not follow the prompt, the rest is "".
        """
        reply = len(chat.messages) - 1
        before, unprompted = self._prompts(chat.first(reply))
        begin = _leave(before, unprompted, written.text)
        if begin is None or begin == len(before):
            return ""
        tags = [tag.start() for tag in _TAG.finditer(before)]
        return before[max((at for at in tags if at <= begin), default=begin) :]

    def join(self, chat: Chat, written: Written) -> tuple[str, Reply] | None:
        """Return a text made of the last reply's prompt and the reply, and the reply's span in that text.

        Used if the template writes other text before the reply than in the reply's prompt. The reply is taken
        to begin after the preceding message and the generation prompt, and before the first of its own texts.
        None if this beginning cannot be found.
        """
        reply = len(chat.messages) - 1
        context = chat.first(reply)
        before, unprompted = self._prompts(context)
        begin, own = (self._first_of(chat, i, written.text) for i in (reply - 1, reply))
        lead = before[common_length(before, unprompted) :]
        if not lead:  # the template has no generation prompt
            lead = before[self._first_of(context, reply - 1, before, prompt=True) :]
        for kept in _kept_leads(lead):
            at = written.text.rfind(kept, begin, own)
            if at < 0:
                continue
            shared = len(before) - len(lead) + len(kept)
            moved = shared - at - len(kept)
            text = before[:shared] + written.text[at + len(kept) :]
            left = _leave(before, before[: len(before) - len(lead)], text)
            if left is not None:
                blocks = written.blocks and [(first + moved, last + moved) for first, last in written.blocks]
                joined = self._end(chat, Written(text, blocks), reply, left, before[left:])
                return None if isinstance(joined, Fault) else (text, joined)
        return None

    def _first_of(self, chat: Chat, message: int, text: str, prompt: bool = False) -> int:
        """Return the position in `text` of the first character that depends on a message's texts.

        Return the length of `text` if the template refuses a changed message.
        """
        try:
            return common_length(text, self._render(altered(chat, message), prompt).text)
        except Refused:
            return len(text)

    def _prompts(self, chat: Chat) -> tuple[str, str]:
        """Return the text of a chat with a generation prompt, and the text without it."""
        return self._render(chat, True).text, self._render(chat, False).text

    def _find(self, chat: Chat, written: Written, reply: int) -> Reply | Fault:
        part = chat.first(reply + 1)
        is_last = reply == len(chat.messages) - 1
        upto = written if is_last else self._render(part, False)
        stop = self._ends.of(chat.messages, reply)
        if self._ends.next_turn:
            text = upto.text[: len(upto.text) - len(self._ends.after(part.messages))]
            upto = upto._replace(text=text + stop)
        before = self._render(chat.first(reply), True).text
        begin = len(before) if upto.text.startswith(before) else None
        if begin is None:
            begin = _leave(before, self._render(chat.first(reply), False).text, upto.text)
        if begin is None:
            what = f"reply {reply} does not follow its prompt"
            return Fault(difference(before, upto.text, what), needs_row=True)
        place = self._end(chat, upto, reply, begin, before[begin:])
        if isinstance(place, Reply) and not written.text.startswith(upto.text[: place.end]):
            what = f"reply {reply} is rewritten once more messages follow"
            return Fault(difference(upto.text[: place.end], written.text, what), needs_row=True)
        return place

    def _end(self, chat: Chat, upto: Written, reply: int, begin: int, rest: str) -> Reply | Fault:
        """Return the span of the reply that is last in the text `upto`. It ends with its stop token.

        Text of a generation block after the stop token is not learned, because a model would not generate
        such text.
        """
        stop = self._ends.of(chat.messages, reply)
        stops = tuple(dict.fromkeys((stop, self._ends.reply)))  # a call may end with either token
        if upto.blocks is None:
            size = _last_stop(upto.text[begin:], stops)
            if size < 0:
                return Fault(f"the chat template writes no {stop!r} after reply {reply}")
            return Reply(begin, begin + size, rest, upto.text[begin + size :], stops)
        count = sum(message["role"] == "assistant" for message in chat.messages[: reply + 1])
        if len(upto.blocks) != count:
            return Fault(f"the chat template writes {len(upto.blocks)} generation blocks for {count} replies")
        first, end = upto.blocks[-1]
        is_late = first > begin
        begin, rest = max(begin, first), "" if is_late else rest
        if self._ends.next_turn and upto.text[end : end + len(stop)] == stop:
            return Reply(begin, end + len(stop), rest, is_late=is_late)
        size = _last_stop(upto.text[begin:end], stops)
        if size < 0 and (chat.has_more or begin >= end):
            return Fault(f"the chat template writes no {stop!r} in the block of reply {reply}")
        last = end if size < 0 else begin + size
        return Reply(begin, last, rest, upto.text[last:end], stops, is_late)


def _last_stop(text: str, stops: tuple[str, ...]) -> int:
    """Return the end position of the last stop token in the text; -1 if there is none."""
    return max((at + len(stop) for stop in stops if (at := text.rfind(stop)) >= 0), default=-1)


def _leave(before: str, unprompted: str, text: str) -> int | None:
    """Return the position up to which `text` follows the prompt `before`; None if it does not follow it.

    The position may be before the prompt's end, because a prompt may begin a block of thoughts that the
    reply does not have. unprompted: the text of the chat without the generation prompt.
    """
    if text.startswith(before):
        return len(before)
    if not (text.startswith(unprompted) and before.startswith(unprompted)):
        return None
    begin = len(unprompted) + kept_length(before[len(unprompted) :], text[len(unprompted) :])
    rest = before[begin:].strip()
    if before[len(unprompted) : begin].strip():
        return begin if not rest or _THOUGHTS.search(rest) else None
    tag = _TAG.match(rest)  # the generation prompt has no text before the thoughts
    return begin if tag and _THOUGHTS.search(tag.group()) else None


def kept_length(prompt: str, text: str) -> int:
    """Return the length of the common prefix of two texts, without a tag that the prefix would cut."""
    kept = common_length(prompt, text)
    inside = (tag.start() for tag in _TAG.finditer(prompt) if tag.start() < kept < tag.end())
    return next(inside, kept)


def _kept_leads(lead: str) -> list[str]:
    """Return the beginnings of a generation prompt that may precede a reply, the longest first.

    They are the whole prompt, and the prompt cut before each tag that a word for thoughts follows
    (`_THOUGHTS`). Blank beginnings are left out.
    """
    starts = [tag.start() for tag in _TAG.finditer(lead) if _THOUGHTS.search(lead[tag.start() :])]
    return [kept for kept in (lead, *(lead[:start] for start in reversed(starts))) if kept.strip()]


def is_whole(message: dict[str, Any], text: str, begin: int, end: int) -> bool:
    """True if the span from `begin` to `end` contains the reply's content and thoughts."""
    texts = [message.get(name) or "" for name in ("content", *THOUGHTS)]
    return all(_is_written(content, text, begin, end) for content in texts)


def loses_call(message: dict[str, Any], span: str) -> bool:
    """True if the span lacks a tool call of the reply. A model would learn to stop without the call."""
    return not all(_is_called(call, span) for call in message.get("tool_calls", ()))


def _is_written(content: str, full: str, begin: int, end: int) -> bool:
    """True if the span contains the content. White space is ignored.

    The beginning of the content may be in the prompt before the span.
    """
    if content.strip() in full[begin:end]:
        return True
    text = full[max(begin - len(content), 0) : end]
    return "".join(content.split()) in "".join(text.split())


def _is_called(call: Any, span: str) -> bool:
    """True if the span contains the name or the id of the call."""
    function = call.get("function", call)
    names = (function.get("name") if isinstance(function, dict) else None, call.get("id"))
    marks = [name for name in names if isinstance(name, str) and name]
    return not marks or any(mark in span for mark in marks)
