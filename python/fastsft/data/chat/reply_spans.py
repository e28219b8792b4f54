"""The parts of a chat template's text that are learned: where its replies begin and end.

Imports nothing but the standard library: it is part of the rendering process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fastsft.data.chat.asked_chat import Chat
from fastsft.data.chat.pieces import Span, common_length, difference
from fastsft.data.chat.sandbox import Fatal, Refused

Render = Callable[[Chat, bool], str]  # the chat, with a prompt for a reply or without


class Ends(NamedTuple):
    """The special tokens that end replies.

    reply: of a text. call: of a reply that calls tools; "" where the template writes none. next_turn: they
    are those with which the next message begins, as in GLM-4's template; the text of a row then ends with
    one more.
    """

    reply: str
    call: str = ""
    next_turn: bool = False

    def of(self, message: dict[str, Any]) -> str:
        return self.call if message.get("tool_calls") else self.reply

    def after(self, messages: list[dict[str, Any]]) -> str:
        """The end of a row's text that the template does not write."""
        ends_with_reply = self.next_turn and messages and messages[-1]["role"] == "assistant"
        return self.of(messages[-1]) if ends_with_reply else ""


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

    def by_blocks(
        self, chat: Chat, full: str, blocks: list[Span], wanted: list[int]
    ) -> tuple[dict[int, Span], dict[int, str]]:
        """As `by_prompts`, where the template has generation blocks: one for each reply.

        What is in a block after its last stop token is not learned: nothing generates it.
        """
        replies = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if len(blocks) != len(replies):
            fault = f"the chat template writes {len(blocks)} generation blocks for {len(replies)} replies"
            return {}, dict.fromkeys(wanted, fault)
        return {i: self._cut(chat.messages[i], full, blocks[replies.index(i)]) for i in wanted}, {}

    def by_prompts(self, chat: Chat, full: str, wanted: list[int]) -> tuple[dict[int, Span], dict[int, str]]:
        """For each wanted reply its span in `full`, or why that is not known."""
        spans: dict[int, Span] = {}
        faults: dict[int, str] = {}
        for i in wanted:
            found = self._span(chat, full, i)
            if isinstance(found, str):
                faults[i] = found
            else:
                spans[i] = found
        return spans, faults

    def _cut(self, message: dict[str, Any], full: str, block: Span) -> Span:
        begin, end = block
        stop = self._stop_of(message)
        at = full.rfind(stop, begin, end)
        if at >= 0:
            return begin, at + len(stop)
        return begin, end + len(stop) if self._ends.next_turn and full.startswith(stop, end) else end

    def _stop_of(self, message: dict[str, Any]) -> str:
        return self._ends.of(message) or self._ends.reply

    def rest_of_prompt(self, chat: Chat, full: str) -> str:
        """The end of the prompt for the last message, a reply, with which the reply does not go on."""
        before = self._render(chat.first(len(chat.messages) - 1), True)
        return before[common_length(before, full) :]

    def _span(self, chat: Chat, full: str, reply: int) -> Span | str:
        """From the end of the prompt to the end of the stop token; a text when the template rewrites."""
        is_last = reply == len(chat.messages) - 1
        upto = full if is_last else self._render(chat.first(reply + 1), False)
        begin = self._begin(chat, upto, reply)
        if isinstance(begin, str):
            return begin
        stop = self._stop_of(chat.messages[reply])
        at = upto.rfind(stop, begin)
        if at < 0:
            return f"the chat template writes no {stop!r} after reply {reply}"
        end = at + len(stop)
        if not full.startswith(upto[:end]):
            return difference(upto[:end], full, f"reply {reply} is rewritten once more messages follow")
        return begin, end

    def _begin(self, chat: Chat, upto: str, reply: int) -> int | str:
        """The place where the text leaves the prompt for the reply, which may be before the prompt's end.

        A prompt may go on with the beginning of a block of thoughts that the reply has not.
        """
        messages = chat.first(reply)
        before = self._render(messages, True)
        if upto.startswith(before):
            return len(before)
        asked = self._render(messages, False)
        common = common_length(before, upto)
        content = (chat.messages[reply]["content"] or "").strip()
        at = upto.find(content, len(asked)) if content else -1
        begin = common if at < 0 else min(common, at)
        if not upto.startswith(asked) or not before[len(asked) : begin].strip():
            return difference(before, upto, f"reply {reply} does not follow its prompt")
        return begin


def needed(chat: Chat, spans: dict[int, Span], faults: dict[int, str], wanted: list[int]) -> list[Span]:
    """The wanted spans. Refused for a fault of this chat alone, Fatal for one that more messages bring."""
    found = {i: faults[i] for i in wanted if i in faults}
    for i, fault in found.items():
        if i == len(chat.messages) - 1 or chat.messages[i].get("tool_calls"):
            raise Refused(fault)
    if found:
        raise Fatal(next(iter(found.values())))
    return [spans[i] for i in wanted]
