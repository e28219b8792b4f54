"""The learned part of a conversation by its published chat template, from what transformers renders alone.

A reply's tokens are those of the text that the template emits for its turn: after the prompt for the reply,
up to the end of its turn. The model reads that prompt, as a server renders it, and nothing else before them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from template_conversations import Message


@dataclass(frozen=True)
class Published:
    """A published template, and how it writes replies: read off its text by a person.

    header: before a reply's text, one of them. ends: of a reply. named: the tokenizer's named tokens.
    thoughts: the field that it reads. next_turn: the tokens that end a reply as the beginning of the next
    message: of a text, and of a call. as_text: arguments of calls are JSON texts. null: the content of a call
    alone is null. tool_template: the one for records with tools.
    """

    header: tuple[str, ...]
    ends: tuple[str, ...]
    named: dict[str, str]
    thoughts: str = "reasoning_content"
    next_turn: tuple[str, str] | None = None
    as_text: bool = False
    null: bool = False
    tool_template: str = ""


class Reply(NamedTuple):
    """context, learned: ids. leaves: the prompt begins thoughts that the template writes otherwise in the
    reply. refused: what the template says instead. lost: the call is not in the text of its turn."""

    context: Sequence[int] = ()
    learned: Sequence[int] = ()
    leaves: bool = False
    refused: str = ""
    lost: bool = False


class Reference:
    """A template with its tokenizer."""

    def __init__(self, model: Path, published: Published) -> None:
        self._of = published
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(model)

    def replies(self, messages: list[Message], tools: Any) -> list[Reply]:
        """Of each reply, in order; of none whose call the template does not write, which fastsft says."""
        chat = [self.message(message) for message in messages]
        texts_of_calls = {m["content"] for m in messages if m.get("tool_calls")}
        loses = bool(texts_of_calls) and self._loses_calls(tools)
        if loses:
            chat = without_lost_turns(chat)
        places = [
            i
            for i, m in enumerate(chat)
            if m["role"] == "assistant" and not (loses and m["content"] in texts_of_calls)
        ]
        try:
            _ = self._text(chat, tools) if chat else ""
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            return [Reply(refused=str(error)) for _ in places]
        return [self._reply(chat, tools, i) for i in places]

    def loses_calls(self, messages: list[Message], tools: Any) -> bool:
        """True if a turn of the conversation is one call that the template does not write."""
        return self._loses_calls(tools) and any(m.get("tool_calls") for m in messages)

    def message(self, message: Message) -> Message:
        changed = {("thinking" if k == "reasoning_content" else k): v for k, v in message.items()}
        changed = {(self._of.thoughts if k == "thinking" else k): v for k, v in changed.items()}
        if "tool_calls" in message:
            changed["tool_calls"] = [self._call(each) for each in message["tool_calls"]]
            changed["content"] = message["content"] or (None if self._of.null else "")
        return changed

    def _call(self, one: Message) -> Message:
        arguments: Any = one["function"]["arguments"]
        if self._of.as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**one, "function": {**one["function"], "arguments": arguments}}

    def _text(self, chat: list[Message], tools: Any, prompt: bool = False) -> str:
        text = self._tokenizer.apply_chat_template(
            chat, tools=tools, tokenize=False, add_generation_prompt=prompt
        )
        assert isinstance(text, str)
        return text

    def _loses_calls(self, tools: Any) -> bool:
        """True if nothing of a call is written."""
        one = self._call(
            {
                "id": "callnum09",
                "type": "function",
                "function": {"name": "zqname", "arguments": {"zqkey": "zqvalue"}},
            }
        )
        calling = {"role": "assistant", "content": None if self._of.null else "", "tool_calls": [one]}
        try:
            text = self._text([{"role": "user", "content": "Hm?"}, calling], tools)
        except (TemplateError, TypeError, ValueError, KeyError):
            return True
        return "zqvalue" not in text

    def _reply(self, chat: list[Message], tools: Any, reply: int) -> Reply:
        prompt, upto = self._text(chat[:reply], tools, True), self._text(chat[: reply + 1], tools)
        # Of the prompt, after the header, the beginning of thoughts, or nothing.
        said, going_on = self._after_header(upto, chat, reply), self._after_header(prompt, chat, reply)
        if said is None or going_on is None:
            return Reply(refused="the turn has no header")
        turn = self._ended(said, chat[reply])
        calls = chat[reply].get("tool_calls", [])
        lost = bool(calls) and not any(
            each["function"]["name"] in turn or each["id"] in turn for each in calls
        )
        kept = len(going_on)
        if not turn.startswith(going_on):
            pairs = zip(going_on, turn, strict=False)
            kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            for tag in re.finditer(r"<[^<>\s]*>", going_on):
                kept = tag.start() if tag.start() < kept < tag.end() else kept
            if going_on[kept:].strip() and not re.search("think|thought|reason", going_on[kept:]):
                return Reply(refused="the turn is not that of the prompt")
        begin = len(prompt) - len(going_on) + kept
        text = prompt[:begin] + turn[kept:]
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        first = next(i for i, (_, end) in enumerate(offsets) if end > begin)
        return Reply(ids[:first], ids[first:], leaves=kept < len(going_on), lost=lost)

    def _after_header(self, text: str, chat: list[Message], reply: int) -> str | None:
        """The text of the last turn, after its header; None without a header."""
        written = (str(m["content"]).strip() for m in reversed(chat[:reply]))
        before = next(each for each in written if each and each in text)
        at = text.rindex(before) + len(before)
        found = [(place, header) for header in self._of.header if (place := text.find(header, at)) >= 0]
        place, header = min(found, default=(-1, ""), key=lambda each: (each[0], -len(each[1])))
        return None if place < 0 else text[place + len(header) :]

    def _ended(self, turn: str, message: Message) -> str:
        """Up to the token that ends it."""
        if self._of.next_turn:
            return turn + self._of.next_turn[bool(message.get("tool_calls"))]
        stops = [turn.rfind(end) + len(end) for end in self._of.ends if end in turn]
        return turn[: max(stops)] if stops else turn


def without_lost_turns(chat: list[Message]) -> list[Message]:
    """Without the turns that have a call alone, which fastsft leaves out and says so, and without all else
    that is of calls: "not used" names it."""
    turns: list[list[Message]] = []
    for message in chat:
        if message["role"] in ("user", "system") or not turns:
            turns.append([])
        turns[-1].append(message)
    kept = [turn for turn in turns if not any(m.get("tool_calls") and not m["content"] for m in turn)]
    of_calls = ("tool_calls", "tool_call_id", "name")
    return [{k: v for k, v in m.items() if k not in of_calls} for turn in kept for m in turn]
