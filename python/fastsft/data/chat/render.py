"""Renders conversations with a model's own Jinja chat template; runs in a process of its own.

The template comes from a model directory and is not trusted: a sandbox keeps it from Python's insides
(`sandbox.py`), and this process keeps its time, memory and output within limits. Imports nothing but
jinja2 and the standard library. Speaks JSON lines over its standard input and output; `template.py` is the
other end.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import secrets
import signal
import sys
from functools import cached_property
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.exceptions import SecurityError

from fastsft.data.chat.asked_chat import (
    CALL_FORMS,
    CallForm,
    Chat,
    Message,
    asked_chat,
    call_probe,
    reasoning_probe,
    tools_probe,
)
from fastsft.data.chat.pieces import Piece, Span, cut_pieces, difference, place_contents
from fastsft.data.chat.sandbox import Fatal, Refused, Sandbox, TimeLimit

MEMORY_LIMIT = 1 << 29
_MOST_SKELETONS = 1 << 22  # characters
_SURROGATE = re.compile("[\ud800-\udfff]")


class Skeleton(NamedTuple):
    """The text that a template writes around contents that it does not look at."""

    chat: Chat
    text: str
    blocks: list[Span]
    pieces: list[Piece]
    spans: dict[int, Span]  # reply number -> what is learned with it, of those that were asked for
    faults: dict[int, str]  # reply number -> why it has no span


class Program:
    """One compiled template. `stop`: the text that ends replies; None while it is not known yet."""

    def __init__(
        self, source: str, tokens: dict[str, str], date: str, adds_bos: bool, stop: str | None
    ) -> None:
        # Digits, because a template may change the case of what it writes.
        nonce = self._nonce = f"{secrets.randbelow(10**18):018}"
        self._content_mark = f"\ue000{nonce}-%05d\ue001"
        self._mark_pattern = re.compile(f"\ue000{nonce}-(\\d{{5}})\ue001")
        self._blocks = (f"\ue002{nonce}\ue003", f"\ue004{nonce}\ue005")
        self._environment = Sandbox(date, self._blocks)
        self._tokens = tokens
        self._bos = tokens.get("bos_token", "") if adds_bos else ""
        self._stop = stop
        self._skeletons: dict[tuple[str, ...], Skeleton] = {}
        self._skeleton_size = 0  # characters of all of them
        try:
            self._template = self._environment.from_string(source)
            self.has_blocks = "generation" in source and self._parses_blocks(source)
        except Exception as error:  # constants are computed while it compiles: anything may come of them
            raise Fatal(f"the chat template does not compile: {str(error) or type(error).__name__}") from None

    def _parses_blocks(self, source: str) -> bool:
        return any(
            isinstance(block.call.node, nodes.ExtensionAttribute)
            for block in self._environment.parse(source).find_all(nodes.CallBlock)
        )

    def text(self, chat: Chat, prompt: bool = False) -> str:
        """The rendered text. Refused for an exception of the template or too much output."""
        limit = (1 << 20) + 16 * chat.size
        parts, size = [], 0
        try:
            for part in self._template.generate(
                messages=chat.messages, add_generation_prompt=prompt, tools=chat.tools, documents=None,
                **self._tokens,
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
        return text

    def render(self, system: str | None, messages: list[Message], tools: str) -> dict[str, Any]:
        """Pieces [text, is_data, is_learned] of one conversation, and how they were found."""
        form = self._call_form if any(more for *_, more in messages) else None
        chat = asked_chat(system, messages, tools, form)
        text = self.text(chat)
        full, blocks = self._split_blocks(text)
        replies = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        offset = len(chat.messages) - len(messages)
        learned = [i for i in replies if messages[i - offset][2]]
        changed: list[int] = []
        placed = None if chat.has_more else self._place(chat, full, learned)
        if placed is None:
            spans = self._content_spans(chat, full, blocks, replies, learned)
            pieces = list(cut_pieces([Piece(full, -1, 0)], [full], spans))
            changed = [
                i - offset
                for i, (begin, end) in zip(learned, spans, strict=True)
                if (chat.messages[i]["content"] or "").strip() not in full[begin:end]
            ]
        else:
            skeleton, contents = placed
            for i in learned:
                if i not in skeleton.spans:
                    raise Fatal(skeleton.faults[i])
            pieces = list(cut_pieces(skeleton.pieces, contents, [skeleton.spans[i] for i in learned]))
        return {
            "pieces": pieces,
            "bos": bool(self._bos) and not full.startswith(self._bos),
            "known": placed is not None,
            "more": chat.more_text(),
            "rewritten": changed[0] if changed else -1,
        }

    @cached_property
    def _call_form(self) -> CallForm | None:
        """The first form of calls that the template writes as JSON; None: it writes none."""
        for form in CALL_FORMS:
            with contextlib.suppress(Refused, Fatal):
                text = self.text(call_probe(self._nonce, form))
                if self._nonce in text and "{'x': 1}" not in text:  # as Python writes an object
                    return form
        return None

    def _place(self, chat: Chat, full: str, learned: list[int]) -> tuple[Skeleton, list[str]] | None:
        skeleton = self._skeleton(tuple(message["role"] for message in chat.messages), learned)
        contents = place_contents(skeleton.pieces, [message["content"] for message in chat.messages], full)
        return None if contents is None else (skeleton, contents)

    def ending(self) -> str:
        """The text that the template writes after the last reply of a short conversation."""
        marked = self._marked(("user", "assistant") * 2)
        text, _ = self._split_blocks(self.text(marked))
        marks = list(self._mark_pattern.finditer(text))
        if not marks or int(marks[-1].group(1)) != len(marked.messages) - 1:
            raise Fatal("the chat template does not write the last reply")
        return text[marks[-1].end() :]

    def trait(self, name: str) -> bool:
        """rewrites: a first reply is not in the text of two turns as in that of one. marks_replies: the
        template itself says where a reply begins, by a prompt or by generation blocks. Else whether it writes
        the field `name`: tools, tool_calls or reasoning_content."""
        if name == "rewrites":
            skeleton = self._skeleton(("user", "assistant", "user", "assistant"), [1, 3])
            return not self.has_blocks and 3 in skeleton.spans and 1 in skeleton.faults
        if name == "marks_replies":
            asked = self._marked(("user",))
            return self.has_blocks or self.text(asked) != self.text(asked, prompt=True)
        if name == "tool_calls":
            return self._call_form is not None
        return self._writes(tools_probe(self._nonce) if name == "tools" else reasoning_probe(self._nonce))

    def _writes(self, probe: Chat) -> bool:
        """True if the nonce of a probe is in its text."""
        with contextlib.suppress(Refused, Fatal):
            return self._nonce in self.text(probe)
        return False

    def _marked(self, roles: tuple[str, ...]) -> Chat:
        return Chat([{"role": role, "content": self._content_mark % i} for i, role in enumerate(roles)])

    def _split_blocks(self, text: str) -> tuple[str, list[Span]]:
        """The text without the marks of generation blocks, and what they surround."""
        if not self.has_blocks:
            return text, []
        begin, end = self._blocks
        spans: list[Span] = []
        plain = ""
        for part in text.split(begin)[0:1]:
            plain += part
        for part in text.split(begin)[1:]:
            inside, _, behind = part.partition(end)
            if end in behind:
                raise Fatal("the chat template writes a generation block inside another")
            spans.append((len(plain), len(plain) + len(inside)))
            plain += inside + behind
        return plain, spans

    def _skeleton(self, roles: tuple[str, ...], wanted: list[int]) -> Skeleton:
        """That of `roles`, with the spans of the replies `wanted`, or why they have none."""
        known = self._skeletons.get(roles)
        if known is None:
            if self._skeleton_size > _MOST_SKELETONS:
                self._skeletons, self._skeleton_size = {}, 0
            known = self._skeletons[roles] = self._make_skeleton(roles)
            self._skeleton_size += len(known.text)
        missing = [i for i in wanted if i not in known.spans and i not in known.faults]
        if missing:
            replies = [i for i, role in enumerate(roles) if role == "assistant"]
            spans, faults = self._spans(known.chat, known.text, known.blocks, replies, missing)
            known.spans.update(spans)
            known.faults.update(faults)
        return known

    def _make_skeleton(self, roles: tuple[str, ...]) -> Skeleton:
        chat = self._marked(roles)
        text, blocks = self._split_blocks(self.text(chat))
        pieces, at = [], 0
        for mark in self._mark_pattern.finditer(text):
            pieces.append(Piece(text[at : mark.start()], -1, at))
            pieces.append(Piece(mark.group(), int(mark.group(1)), mark.start()))
            at = mark.end()
        pieces.append(Piece(text[at:], -1, at))
        return Skeleton(chat, text, blocks, pieces, {}, {})

    def _content_spans(
        self,
        chat: Chat,
        full: str,
        blocks: list[Span],
        replies: list[int],
        learned: list[int],
    ) -> list[Span]:
        spans, faults = self._spans(chat, full, blocks, replies, learned)
        if faults and chat.has_more and self.has_blocks:  # calls may be outside of its blocks
            raise Refused(next(iter(faults.values())))
        if faults:
            raise Fatal(next(iter(faults.values())))
        return [spans[i] for i in learned]

    def _spans(
        self, chat: Chat, full: str, blocks: list[Span], replies: list[int], wanted: list[int]
    ) -> tuple[dict[int, Span], dict[int, str]]:
        """For each wanted reply what is learned of it in `full`, or why that is not known."""
        if self.has_blocks:
            if len(blocks) == len(replies):
                return {i: blocks[replies.index(i)] for i in wanted}, {}
            fault = f"{len(blocks)} generation blocks for {len(replies)} replies"
            return {}, dict.fromkeys(wanted, f"the chat template writes {fault}")
        spans: dict[int, Span] = {}
        faults: dict[int, str] = {}
        for i in wanted:
            found = self._prefix_span(chat, full, i)
            if isinstance(found, str):
                faults[i] = found
            else:
                spans[i] = found
        return spans, faults

    def _prefix_span(self, chat: Chat, full: str, reply: int) -> Span | str:
        """From the end of the prompt to the end of the stop token; a text when the template rewrites."""
        before = self.text(chat.first(reply), prompt=True)
        upto = full if reply == len(chat.messages) - 1 else self.text(chat.first(reply + 1))
        if not upto.startswith(before):
            return difference(before, upto, f"reply {reply} does not follow its prompt")
        stop = self._stop or ""
        end = upto.rfind(stop) + len(stop)
        if end <= len(before) or (stop and stop not in upto[len(before) :]):
            return f"the chat template writes no {stop!r} after reply {reply}"
        if not full.startswith(upto[:end]):
            return difference(upto[:end], full, f"reply {reply} is rewritten once more messages follow")
        return len(before), end


def _told(error: Exception) -> str:
    """A template's own words, short, and without what moves a cursor."""
    words = str(error)[:300]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def _answer(program: Program, request: str | list[Any], seconds: float) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if request == "ending":
            return {"ending": program.ending()}
        if isinstance(request, str):
            return {"trait": program.trait(request)}
        return program.render(*request)
    except Refused as error:
        return {"failure": str(error)}
    except Fatal as error:
        return {"fatal": str(error)}
    except TimeLimit:
        return {"failure": f"the chat template takes more than {seconds:g} s"}
    except (MemoryError, RecursionError) as error:
        return {"failure": f"the conversation cannot be rendered: {type(error).__name__}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Read the settings, then a request a line; answer each with a line."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))

    def on_alarm(*_: object) -> None:
        raise TimeLimit

    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    seconds = settings.pop("seconds")
    program: Program | None = None
    try:
        program = Program(**settings)
        hello = {"has_blocks": program.has_blocks}
    except Fatal as error:
        hello = {"fatal": str(error)}  # type: ignore[dict-item]
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        if program is not None:
            print(json.dumps(_answer(program, json.loads(line), seconds)), flush=True)


if __name__ == "__main__":
    main()
