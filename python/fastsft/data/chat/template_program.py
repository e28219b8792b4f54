"""One chat template of a model: the texts that it writes, and where replies are in them.

Part of the process that renders (`render.py`): imports nothing but jinja2 and the standard library.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from fastsft.data.chat.asked_chat import (
    CALL_FORMS,
    THOUGHTS,
    CallForm,
    Chat,
    Message,
    asked_chat,
    call_probe,
    thoughts_probe,
    tools_probe,
)
from fastsft.data.chat.input_probes import INPUTS, takes_input
from fastsft.data.chat.pieces import Piece, Span, cut_pieces, is_written, place_contents
from fastsft.data.chat.reply_spans import Ends, Fault, Found, ReplySpans, needed, split_blocks
from fastsft.data.chat.sandbox import Fatal, Refused, Sandbox, TimeLimit

_MOST_SKELETONS = 1 << 22  # characters
_SURROGATE = re.compile("[\ud800-\udfff]")


class Skeleton(NamedTuple):
    """The text that a template writes around contents that it does not look at."""

    chat: Chat
    text: str
    blocks: list[Span]
    pieces: list[Piece]
    found: Found  # of the replies that were asked for


class Program:
    """One compiled template.

    ends: what ends replies, as `Ends`; () while it is not known yet. for_tools: it is given tools always, so
    that probes without any have one.
    """

    def __init__(
        self,
        source: str,
        tokens: dict[str, str],
        date: str,
        adds_bos: bool,
        ends: Sequence[Any],
        for_tools: bool = False,
    ) -> None:
        # Digits, because a template may change the case of what it writes.
        nonce = self._nonce = f"{secrets.randbelow(10**18):018}"
        self._content_mark = f"\ue000{nonce}-%05d\ue001"
        self._mark_pattern = re.compile(f"\ue000{nonce}-(\\d{{5}})\ue001")
        self._blocks = (f"\ue002{nonce}\ue003", f"\ue004{nonce}\ue005")
        self._environment = Sandbox(date, self._blocks)
        self._tokens = tokens
        self._probe_tools = tools_probe(nonce).tools if for_tools else None
        self._bos = tokens.get("bos_token", "") if adds_bos else ""
        self._ends = Ends(*(ends or ("",)))
        self._spans = ReplySpans(self.text, self._ends)
        self._skeletons: dict[tuple[str, ...], Skeleton] = {}
        self._skeleton_size = 0  # characters of all of them
        try:
            self._template = self._environment.from_string(source)
            self.has_blocks = "generation" in source and self._parses_blocks(source)
        except Exception as error:  # constants are computed while it compiles: anything may come of them
            line = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
            reason = str(error) or type(error).__name__
            raise Fatal(f"the chat template does not compile: {line}{reason}") from None

    def _parses_blocks(self, source: str) -> bool:
        return any(
            isinstance(block.call.node, nodes.ExtensionAttribute)
            for block in self._environment.parse(source).find_all(nodes.CallBlock)
        )

    def text(self, chat: Chat, prompt: bool = False) -> str:
        """The rendered text, which ends as a row does. Refused for an exception of the template or too much
        output."""
        limit = (1 << 20) + 16 * chat.size
        parts, size = [], 0
        try:
            for part in self._template.generate(
                messages=chat.messages, add_generation_prompt=prompt, documents=None,
                tools=chat.tools or self._probe_tools, **self._tokens,
            ):  # fmt: skip
                size += len(part)
                if size > limit:
                    raise Refused(f"the chat template writes more than {limit} characters")
                parts.append(part)
        except SecurityError as error:
            raise Fatal(f"the chat template asks for what the sandbox forbids: {error}") from None
        except TimeLimit:
            raise
        except MemoryError:
            raise Refused("the chat template needs too much memory") from None
        except RecursionError:
            raise Refused("the chat template calls itself without end") from None
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"the chat template refuses the conversation: {_told(error)}") from None
        text = "".join(parts)
        if not text.isascii() and _SURROGATE.search(text):
            raise Refused("the chat template writes a lone surrogate, which is no text")
        return text if prompt else text + self._ends.after(chat.messages)

    def render(self, system: str | None, messages: list[Message], tools: str) -> dict[str, Any]:
        """Pieces [text, is_data, is_learned] of one conversation, and how they were found."""
        chat = self._asked(system, messages, tools)
        text = self.text(chat)
        full, blocks = self._split_blocks(text)
        replies = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        offset = len(chat.messages) - len(messages)
        learned = [i for i in replies if messages[i - offset][2]]
        changed: list[int] = []
        placed = None if chat.has_more else self._place(chat, full, learned)
        if placed is None:
            spans = needed(self._find_spans(chat, full, blocks, learned), learned)
            pieces = list(cut_pieces([Piece(full, -1, 0)], [full], spans))
            changed = [
                i - offset
                for i, (begin, end) in zip(learned, spans, strict=True)
                if not is_written(chat.messages[i]["content"] or "", full, begin, end)
            ]
        else:
            skeleton, contents = placed
            spans = needed(skeleton.found, learned)
            pieces = list(cut_pieces(skeleton.pieces, contents, spans))
        return {
            "pieces": pieces,
            "bos": self._lacks_bos(full),
            "known": placed is not None,
            "more": chat.more_text(),
            "rewritten": changed[0] if changed else -1,
        }

    def render_prompt(self, system: str | None, messages: list[Message], tools: str) -> dict[str, Any]:
        """The text before the last message, a reply that is not written yet, as `render`; all of it counts as
        learned. It is the prompt for a reply, or with a template that has none the text up to the reply.
        """
        chat = self._asked(system, messages[:-1], tools)
        text = self.text(chat, prompt=True)
        if text == self.text(chat):
            *earlier, (role, reply, _, more) = messages
            unlearned = [(role, content, False, more) for role, content, _, more in earlier]
            whole = self.render(system, [*unlearned, (role, reply, True, more)], tools)
            before = itertools.takewhile(lambda piece: not piece[2], whole["pieces"])
            return {**whole, "pieces": [(text, is_data, True) for text, is_data, _ in before]}
        full, _ = self._split_blocks(text)
        contents = [message["content"] for message in chat.messages]
        pieces = [] if chat.has_more else self._make_skeleton(_roles(chat), prompt=True).pieces
        texts = place_contents(pieces, contents, full)
        if texts is None:
            pieces, texts = [Piece(full, -1, 0)], [full]
        return {
            "pieces": list(cut_pieces(pieces, texts, [(0, pieces[-1].begin + len(pieces[-1].text))])),
            "bos": self._lacks_bos(full),
            "known": len(pieces) > 1,
            "more": chat.more_text(),
            "rewritten": -1,
        }

    def _asked(self, system: str | None, messages: list[Message], tools: str) -> Chat:
        has_more = any(more for *_, more in messages)
        forms = (self._call_form, self._thoughts_name or THOUGHTS[0]) if has_more else ()
        return asked_chat(system, messages, tools, *forms)

    def _lacks_bos(self, full: str) -> bool:
        return bool(self._bos) and not full.startswith(self._bos)

    @cached_property
    def _call_form(self) -> CallForm | None:
        """The first form of calls that the template writes as JSON; None: it writes none."""
        for form in CALL_FORMS:
            with contextlib.suppress(Refused, Fatal):
                text = self._plain_text(call_probe(self._nonce, form))
                if self._nonce in text and "{'x': 1}" not in text:  # as Python writes an object
                    return form
        return None

    def _place(self, chat: Chat, full: str, learned: list[int]) -> tuple[Skeleton, list[str]] | None:
        skeleton = self._skeleton(_roles(chat), learned)
        contents = place_contents(skeleton.pieces, [message["content"] for message in chat.messages], full)
        return None if contents is None else (skeleton, contents)

    def endings(self) -> dict[str, str]:
        """The texts around the replies of short conversations.

        last: after the last one. middle: after another one, up to the next text. call, after_call: after the
        prompt for a reply that calls a tool, and between it and the tool's result; "" where it writes none.
        rest_of_prompt: as `ReplySpans.rest_of_prompt`.
        """
        marked = self._marked(("user", "assistant") * 2)
        text, _ = self._split_blocks(self.text(marked))
        marks = {int(mark.group(1)): mark for mark in self._mark_pattern.finditer(text)}
        if not marks or max(marks) != len(marked.messages) - 1:
            raise Fatal("the chat template does not write the last reply")
        middle = text[marks[1].end() : marks[2].start()] if 1 in marks and 2 in marks else ""
        call, after_call = self._call_endings()
        return {
            "last": text[marks[3].end() :],
            "middle": middle,
            "call": call,
            "after_call": after_call,
            "rest_of_prompt": "" if self.has_blocks else self._spans.rest_of_prompt(marked, text),
        }

    def _call_endings(self) -> tuple[str, str]:
        if self._call_form is None:
            return "", ""
        probe = call_probe(self._nonce, self._call_form)
        with contextlib.suppress(Refused, Fatal):
            called, answered = (self._plain_text(probe.first(count)) for count in (2, 3))
            if answered.startswith(called):
                return called[called.rfind(self._nonce) :], answered[len(called) :]
        return "", ""

    def trait(self, name: str) -> bool:
        """takes_system: a system text is in the text of a conversation with its reply. lacks_bos: a text gets
        the tokenizer's BOS in front. rewrites: a first reply is not in the text of
        two turns as in that of one. rewrites_thoughts: one that has thoughts is not. marks_replies: the
        template itself says where a reply begins, by a prompt or by generation blocks. Those of INPUTS: as
        `takes_input`. Else whether it writes the field `name`: tools, tool_calls or reasoning_content.
        """
        if name == "rewrites":
            skeleton = self._skeleton(("user", "assistant", "user", "assistant"), [1, 3])
            return not self.has_blocks and _is_rewritten(skeleton.found)
        if name == "rewrites_thoughts":
            return not self.has_blocks and any(map(self._rewrites, (None, self._thoughts_name or None)))
        if name == "takes_system":
            return self._takes_system()
        if name == "lacks_bos":
            return self._lacks_bos(self._plain_text(self._marked(("user", "assistant"))))
        if name == "marks_replies":
            asked = self._marked(("user",))
            return self.has_blocks or self.text(asked) != self.text(asked, prompt=True)
        if name in INPUTS:
            return takes_input(name, self._plain_text, self._call_form, self._nonce)
        if name == "tool_calls":
            return self._call_form is not None
        return self._writes(tools_probe(self._nonce)) if name == "tools" else bool(self._thoughts_name)

    def _takes_system(self) -> bool:
        with contextlib.suppress(Refused, Fatal):
            skeleton = self._skeleton(("system", "user", "assistant"), [2])
            return not isinstance(skeleton.found[2], Fault) and self._content_mark % 0 in skeleton.text
        return False

    def _rewrites(self, thoughts: str | None) -> bool:
        probe = thoughts_probe(self._nonce, thoughts, turns=2)
        with contextlib.suppress(Refused, Fatal):
            return _is_rewritten(self._spans.by_prompts(probe, self.text(probe), [1, 3]))
        return False

    @cached_property
    def _thoughts_name(self) -> str:
        """The first name of thoughts whose field the template writes; "": it writes none."""
        probes = ((name, thoughts_probe(self._nonce, name)) for name in THOUGHTS)
        return next((name for name, probe in probes if self._writes(probe)), "")

    def _writes(self, probe: Chat) -> bool:
        """True if the nonce of a probe is in its text."""
        with contextlib.suppress(Refused, Fatal):
            return self._nonce in self._plain_text(probe)
        return False

    def _plain_text(self, chat: Chat) -> str:
        """Without the marks of blocks, which have the nonce, too."""
        return self._split_blocks(self.text(chat))[0]

    def _marked(self, roles: tuple[str, ...]) -> Chat:
        return Chat([{"role": role, "content": self._content_mark % i} for i, role in enumerate(roles)])

    def _split_blocks(self, text: str) -> tuple[str, list[Span]]:
        return split_blocks(text, self._blocks) if self.has_blocks else (text, [])

    def _skeleton(self, roles: tuple[str, ...], wanted: list[int]) -> Skeleton:
        """That of `roles`, with the spans of the replies `wanted`, or why they have none."""
        known = self._skeletons.get(roles)
        if known is None:
            if self._skeleton_size > _MOST_SKELETONS:
                self._skeletons, self._skeleton_size = {}, 0
            known = self._skeletons[roles] = self._make_skeleton(roles)
            self._skeleton_size += len(known.text)
        missing = [i for i in wanted if i not in known.found]
        if missing:
            known.found.update(self._find_spans(known.chat, known.text, known.blocks, missing))
        return known

    def _make_skeleton(self, roles: tuple[str, ...], prompt: bool = False) -> Skeleton:
        chat = self._marked(roles)
        text, blocks = self._split_blocks(self.text(chat, prompt))
        pieces, at = [], 0
        for mark in self._mark_pattern.finditer(text):
            pieces.append(Piece(text[at : mark.start()], -1, at))
            pieces.append(Piece(mark.group(), int(mark.group(1)), mark.start()))
            at = mark.end()
        pieces.append(Piece(text[at:], -1, at))
        return Skeleton(chat, text, blocks, pieces, {})

    def _find_spans(self, chat: Chat, full: str, blocks: list[Span], wanted: list[int]) -> Found:
        if self.has_blocks:
            return self._spans.by_blocks(chat, full, blocks, wanted)
        return self._spans.by_prompts(chat, full, wanted)


def _roles(chat: Chat) -> tuple[str, ...]:
    return tuple(message["role"] for message in chat.messages)


def _is_rewritten(found: Found) -> bool:
    """True if the first of two replies is, and the last has a span."""
    first, last = found[1], found[3]
    return isinstance(first, Fault) and first.is_rewritten and not isinstance(last, Fault)


def _told(error: Exception) -> str:
    """A template's own words, short, and without what moves a cursor."""
    words = str(error)[:300]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)
