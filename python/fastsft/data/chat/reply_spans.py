"""The parts of a chat template's text that are learned: where its replies begin and end.

Imports nothing but the standard library: it is part of the rendering process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fastsft.data.chat.asked_chat import Chat
from fastsft.data.chat.pieces import Span, common_length, difference
from fastsft.data.chat.sandbox import Fatal, Refused

Render = Callable[[Chat, bool], str]  # the chat, with a prompt for a reply or without
_TAG = re.compile(r"<[^<>\s]*>")
_THOUGHTS = re.compile("think|thought|reason")


class Ends(NamedTuple):
    """The special tokens that end replies.

    reply: of a text. call: of a reply that calls tools; "" where the template writes none. next_turn: they
    are those with which the next message begins, as in GLM-4's template: a user's message, and a tool's
    result. The text of a row then ends with one more.
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
        """The end of a row's text that the template does not write."""
        ends_with_reply = self.next_turn and messages and messages[-1]["role"] == "assistant"
        return self.of(messages, len(messages) - 1) if ends_with_reply else ""


class Fault(NamedTuple):
    """Why a reply has no span. is_rewritten: once more messages follow, the template writes it otherwise."""

    reason: str
    is_rewritten: bool = False


Found = dict[int, Span | Fault]  # by the number of the reply's message


def split_blocks(text: str, marks: tuple[str, str]) -> tuple[str, list[Span]]:
    """The text without the marks of generation blocks, and what they surround: blocks that follow each other
    with nothing but white space between them are one."""
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
    return "".join(parts), spans


class ReplySpans:
    """Finds what is learned of the replies of a rendered chat.

    render: the template. ends: of its replies.
    """

    def __init__(self, render: Render, ends: Ends) -> None:
        self._render = render
        self._ends = ends

    def by_blocks(self, chat: Chat, full: str, blocks: list[Span], wanted: list[int]) -> Found:
        """As `by_prompts`, where the template has generation blocks: one for each reply.

        What is in a block after its last stop token is not learned: nothing generates it.
        """
        replies = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if len(blocks) != len(replies):
            fault = f"the chat template writes {len(blocks)} generation blocks for {len(replies)} replies"
            return dict.fromkeys(wanted, Fault(fault))
        return {i: self._cut(chat, full, i, blocks[replies.index(i)]) for i in wanted}

    def _cut(self, chat: Chat, full: str, reply: int, block: Span) -> Span | Fault:
        begin, end = block
        stop = self._ends.of(chat.messages, reply)
        if self._ends.next_turn and full.startswith(stop, end):
            return begin, end + len(stop)
        at = full.rfind(stop, begin, end)
        if at < 0 and chat.has_more:
            return Fault(f"the chat template writes no {stop!r} in the block of reply {reply}")
        return begin, at + len(stop) if at >= 0 else end

    def by_prompts(self, chat: Chat, full: str, wanted: list[int]) -> Found:
        """For each wanted reply its span in `full`, or why that is not known."""
        return {i: self._span(chat, full, i) for i in wanted}

    def rest_of_prompt(self, chat: Chat, full: str) -> str:
        """The end of the last reply's prompt, from a tag on, where the reply leaves the prompt; else ""."""
        reply = len(chat.messages) - 1
        begin, before = self._begin(chat, full, reply), self._render(chat.first(reply), True)
        if isinstance(begin, Fault) or begin == len(before):
            return ""
        tags = [tag.start() for tag in _TAG.finditer(before)]
        return before[max((at for at in tags if at <= begin), default=begin) :]

    def _span(self, chat: Chat, full: str, reply: int) -> Span | Fault:
        """From the end of the prompt to the end of the stop token."""
        part = chat.first(reply + 1)
        is_last = reply == len(chat.messages) - 1
        upto = full if is_last else self._render(part, False)
        begin = self._begin(chat, upto, reply)
        if isinstance(begin, Fault):
            return begin
        stop = self._ends.of(chat.messages, reply)
        if self._ends.next_turn:
            upto = upto[: len(upto) - len(self._ends.after(part.messages))] + stop
        at = upto.rfind(stop, begin)
        if at < 0:
            return Fault(f"the chat template writes no {stop!r} after reply {reply}")
        end = at + len(stop)
        if not full.startswith(upto[:end]):
            what = f"reply {reply} is rewritten once more messages follow"
            return Fault(difference(upto[:end], full, what), is_rewritten=True)
        return begin, end

    def _begin(self, chat: Chat, upto: str, reply: int) -> int | Fault:
        """The place where the text leaves the prompt for the reply, which may be before the prompt's end.

        A prompt may go on with the beginning of a block of thoughts that the reply has not, or has otherwise.
        """
        messages = chat.first(reply)
        before = self._render(messages, True)
        if upto.startswith(before):
            return len(before)
        asked = self._render(messages, False)
        if upto.startswith(asked) and before.startswith(asked):
            begin = common_length(before, upto, len(asked))
            for tag in _TAG.finditer(before, len(asked)):  # a text that begins as a tag does is not it
                begin = tag.start() if tag.start() < begin < tag.end() else begin
            rest = before[begin:].strip()
            if before[len(asked) : begin].strip() and (not rest or _THOUGHTS.search(rest)):
                return begin
        return Fault(difference(before, upto, f"reply {reply} does not follow its prompt"))


def needed(found: Found, wanted: list[int]) -> list[Span]:
    """The wanted spans. Refused for a fault of this chat alone, Fatal for one that more messages bring."""
    spans = []
    for i in wanted:
        one = found[i]
        if isinstance(one, Fault):
            if one.is_rewritten:
                raise Fatal(
                    f"{one.reason}; with such a template --train_turns each learns every reply, in a row of "
                    "its own, and --train_turns last the last one"
                )
            raise Refused(one.reason)
        spans.append(one)
    return spans
