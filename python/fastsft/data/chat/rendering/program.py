"""Render chats with a compiled chat template, and find the positions of the replies in the text."""

from __future__ import annotations

import contextlib
import copy
import itertools
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateSyntaxError

from fastsft.data.chat.rendering.conversation import THOUGHTS, Chat, Message, read_chat, texts_of
from fastsft.data.chat.rendering.generated import generated
from fastsft.data.chat.rendering.known_forms import KnownForms
from fastsft.data.chat.rendering.marked_values import Unforeseen
from fastsft.data.chat.rendering.marks import Marks, Piece, Trace, cut_pieces, place_contents, variants
from fastsft.data.chat.rendering.probes import INPUTS, Probes, takes_input
from fastsft.data.chat.rendering.reply_spans import (
    Ends,
    Fault,
    Found,
    Reply,
    ReplySpans,
    Written,
    is_whole,
    loses_call,
    split_blocks,
)
from fastsft.data.chat.rendering.sandbox import Fatal, Refused, Sandbox
from fastsft.data.chat.rendering.watched import Watched

_MOST_PIECES = 1 << 17


class Program:
    """A compiled template.

    source: the template's text. tokens: special tokens by name. date: the date that the template sees.
    adds_bos: True if the tokenizer adds a BOS. ends: the fields of `Ends`; () if they are not known yet.
    for_tools: True if the template is used only for chats with tools; probes without tools then get a tool.
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
        nonce = self._nonce = f"{secrets.randbelow(10**18):018}"
        self._marks = Marks(nonce)
        self._blocks = (f"\ue002{nonce}\ue003", f"\ue004{nonce}\ue005")
        self._environment = Sandbox(date, self._blocks)
        self._source, self._date = source, date
        self._tokens = tokens
        self._bos = tokens.get("bos_token", "") if adds_bos else ""
        self._ends = Ends(*(ends or ("",)))
        self._begin({})
        self._probe_tools = self._probes.tools.tools if for_tools else None
        try:
            self._template = self._environment.from_string(source)
            self.has_blocks = "generation" in source and self._parses_blocks(source)
        # Constant expressions are evaluated during compilation, and may raise any exception.
        except Exception as error:
            line = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
            reason = str(error) or type(error).__name__
            raise Fatal(f"the chat template does not compile: {line}{reason}") from None

    def _begin(self, variables: dict[str, Any]) -> None:
        """Set what depends on the template's variables, which change its text of every chat."""
        self._variables, self._texts_of_variables = variables, texts_of(list(variables.values()))
        self._probes = Probes(lambda chat: self._written(chat).text, self._nonce)
        self._spans = ReplySpans(self._written, self._ends)
        self._forms = KnownForms(self._marks, self._written_of_marks, self._ends)
        # The rendered text's pieces with marks, by the chat's roles.
        self._plain: dict[tuple[str, ...], list[Piece]] = {}

    def with_variables(self, variables: dict[str, Any]) -> Program:
        """Return this template, compiled once, with further variables.

        Refused if one has another input's name.
        """
        own = {"messages", "add_generation_prompt", "documents", "tools", *self._tokens}
        if taken := own & set(variables):
            raise Refused(f"chat_template_kwargs gives the template {sorted(taken)}, which training gives it")
        other = copy.copy(self)
        other._begin(variables)
        return other

    def _parses_blocks(self, source: str) -> bool:
        return any(
            isinstance(block.call.node, nodes.ExtensionAttribute)
            for block in self._environment.parse(source).find_all(nodes.CallBlock)
        )

    def text(self, chat: Chat, prompt: bool = False, template: Template | None = None) -> str:
        """Return the text that the template writes for a chat.

        prompt: add a generation prompt. template: the same template, compiled in another environment. Without
        a generation prompt, the end token that the template leaves out is added (`Ends.after`). Refused if
        the template raises an exception or writes too much.
        """
        tools = chat.tools or self._probe_tools
        values = {"messages": chat.messages, "add_generation_prompt": prompt, "tools": tools}
        limit = (1 << 20) + 16 * chat.size
        text = generated(template or self._template, {**values, **self._tokens, **self._variables}, limit)
        return text if prompt else text + self._ends.after(chat.messages)

    def plain_text(
        self, messages: list[Any], tools: Any, prompt: bool, marks_dates: bool, variables: dict[str, Any]
    ) -> str:
        """Return the text that `apply_chat_template` writes for messages, which are given as they are.

        marks_dates: write dates as in `Sandbox`. variables: further values that the template sees.
        """
        values = {"messages": messages, "add_generation_prompt": prompt, "tools": tools or self._probe_tools}
        self._environment.marks_dates = marks_dates
        try:
            text = generated(self._template, {**values, **self._tokens, **variables}, 1 << 20)
        finally:
            self._environment.marks_dates = False
        begin, end = self._blocks
        return text.replace(begin, "").replace(end, "")

    def render(self, system: str | None, messages: list[Message], tools: str) -> dict[str, Any]:
        """Return the rendered conversation as pieces [text, is_data, is_learned], with further facts.

        needs_rows: "", or the reason why the replies cannot all be located in the same text, although each
        may be located in a row of its own. For the other facts, see `ModelTemplate.__call__`.
        """
        chat = self._asked(system, messages, tools)
        written = self._written(chat)
        offset = len(chat.messages) - len(messages)
        learned = [
            i + offset
            for i, (role, _, is_learned, _) in enumerate(messages)
            if role == "assistant" and is_learned
        ]
        placed = None if chat.has_more or self._texts_of_variables else self._place(chat, written.text)
        found = self._find(chat, written, learned)
        replies, text, needs_rows = self._chosen(chat, written, learned, found)
        if needs_rows:
            return _answer([], False, True, "", needs_rows=needs_rows)
        for i, reply in zip(learned, replies, strict=True):
            if chat.has_more and loses_call(chat.messages[i], text[reply.begin : reply.end]):
                raise Refused(f"the chat template does not write the call of reply {i}, next to its text")
        spans = [(reply.begin, reply.end) for reply in replies]
        changed: list[int] = []
        if placed is None or text is not written.text:
            pieces = list(cut_pieces([Piece(text, -1, 0)], [text], spans))
            changed = [
                i - offset
                for i, (begin, end) in zip(learned, spans, strict=True)
                if not is_whole(chat.messages[i], text, begin, end)
            ]
        else:
            pieces = list(cut_pieces(*placed, spans))
        is_known = placed is not None and text is written.text
        rewritten = changed[0] if changed else -1
        return _answer(pieces, self._lacks_bos(text), is_known, self._more_text(chat), rewritten)

    def _find(self, chat: Chat, written: Written, learned: list[int]) -> Found:
        # With next_turn, a generation block may end before the token that ends its reply. The text after the
        # block then matters, too, but skeletons do not check that text.
        may_be_known = not (self.has_blocks and self._ends.next_turn)
        replies = self._forms.find(chat, written.text, learned) if may_be_known else None
        return self._spans.find(chat, written, learned) if replies is None else replies

    def _chosen(
        self, chat: Chat, written: Written, learned: list[int], found: Found
    ) -> tuple[list[Reply], str, str]:
        """Return the learned replies, the text that contains them, and the reason for separate rows or "".

        If only the last reply is learned and it cannot be located in the chat's text, a text is made of the
        reply's prompt and the reply. Refused if a reply cannot be located at all.
        """
        faults = [fault for i in learned if isinstance(fault := found[i], Fault)]
        if not faults:
            return [reply for i in learned if isinstance(reply := found[i], Reply)], written.text, ""
        lost = next((fault for fault in faults if not fault.needs_row), None)
        if lost is None and learned != [len(chat.messages) - 1]:
            return [], "", faults[0].reason
        joined = self._spans.join(chat, written) if lost is None else None
        if joined is None:
            raise Refused((lost or faults[0]).reason)
        return [joined[1]], joined[0], ""

    def render_prompt(self, system: str | None, messages: list[Message], tools: str) -> dict[str, Any]:
        """Return the prompt for a reply to generate, in the form that `render` returns.

        The last message stands for the reply, and its text is not part of the prompt. If the template has no
        generation prompt, the prompt is the text before the reply.
        """
        chat = self._asked(system, messages[:-1], tools)
        text = self._written(chat, prompt=True).text
        if text == self._written(chat).text:
            *earlier, (role, reply, _, more) = messages
            unlearned = [(role, content, False, more) for role, content, _, more in earlier]
            whole = self.render(system, [*unlearned, (role, reply, True, more)], tools)
            before = itertools.takewhile(lambda piece: not piece[2], whole["pieces"])
            return {**whole, "pieces": [(text, is_data, True) for text, is_data, _ in before]}
        contents = [message["content"] for message in chat.messages]
        pieces = [] if chat.has_more or self._texts_of_variables else self._pieces(_roles(chat), prompt=True)
        texts = place_contents(pieces, lambda number: variants(contents[number]), text)
        if texts is None:
            pieces, texts = [Piece(text, -1, 0)], [text]
        learned = list(cut_pieces(pieces, texts, [(0, len(text))]))
        return _answer(learned, self._lacks_bos(text), len(pieces) > 1, self._more_text(chat))

    def _more_text(self, chat: Chat) -> str:
        return "\n".join(filter(None, (chat.more_text(), self._texts_of_variables)))

    def _asked(self, system: str | None, messages: list[Message], tools: str) -> Chat:
        has_more = any(more for *_, more in messages)
        forms = (self._probes.call_form, self._probes.thoughts_name or THOUGHTS[0]) if has_more else ()
        return read_chat(system, messages, tools, *forms)

    def _lacks_bos(self, full: str) -> bool:
        return bool(self._bos) and not full.startswith(self._bos)

    def _place(self, chat: Chat, full: str) -> tuple[list[Piece], list[str]] | None:
        """Return the pieces of the chat with marks, and the text of each piece in `full`.

        None if the template changes contents, so that `full` does not match the pieces.
        """
        roles = _roles(chat)
        if (pieces := self._plain.get(roles)) is None:
            if sum(map(len, self._plain.values())) > _MOST_PIECES:
                self._plain.clear()
            pieces = self._plain[roles] = self._pieces(roles)
        contents = [message["content"] for message in chat.messages]
        texts = place_contents(pieces, lambda number: variants(contents[number]), full)
        return None if texts is None else (pieces, texts)

    def _pieces(self, roles: tuple[str, ...], prompt: bool = False) -> list[Piece]:
        """Render a chat with marks as contents, and cut the text at the marks.

        Return [] if the template fails on marks.
        """
        with contextlib.suppress(Refused, Fatal):
            return self._marks.cut(self._written(self._marked(roles), prompt).text)
        return []

    def endings(self) -> dict[str, str]:
        """Return the texts around replies, from short conversations.

        last: the text after the last reply. middle: the text between an earlier reply and the next content.
        call: the text after the name and arguments of a tool call. after_call: the text between the call and
        its result. Both are "" if the template writes no calls. rest_of_prompt: see
        `ReplySpans.rest_of_prompt`.
        """
        marked = self._marked(("user", "assistant") * 2)
        written = self._written(marked)
        text = written.text
        marks = {piece.content: piece for piece in self._marks.cut(text)}
        if max(marks) != len(marked.messages) - 1:
            raise Fatal("the chat template does not write the last reply")
        middle = text[marks[1].end : marks[2].begin] if 1 in marks and 2 in marks else ""
        call, after_call = self._probes.call_endings()
        return {
            "last": text[marks[3].end :],
            "middle": middle,
            "call": call,
            "after_call": after_call,
            "rest_of_prompt": self._spans.rest_of_prompt(marked, written),
        }

    def trait(self, name: str) -> bool:
        """True if the template has the trait `name`.

        takes_system: the template writes a system text. lacks_bos: the template writes no BOS, although the
        tokenizer adds a BOS. rewrites: a reply is written differently when messages follow it.
        rewrites_thoughts: a reply with thoughts is written differently when messages follow it.
        marks_replies: a generation prompt or generation blocks show the beginning of a reply. INPUTS: see
        `takes_input`. tools, tool_calls, reasoning_content: the template writes this field.
        """
        if name == "rewrites":
            two_turns = self._marked(("user", "assistant") * 2)
            return _need_rows(self._spans.find(two_turns, self._written(two_turns), [1, 3]))
        if name == "rewrites_thoughts":
            return any(map(self._rewrites, (None, self._probes.thoughts_name or None)))
        if name == "takes_system":
            return self._takes_system()
        if name == "lacks_bos":
            return self._lacks_bos(self._written(self._marked(("user", "assistant"))).text)
        if name == "marks_replies":
            question = self._marked(("user",))
            return (
                self.has_blocks or self._written(question).text != self._written(question, prompt=True).text
            )
        if name in INPUTS:
            return takes_input(name, self._probes.text, self._probes.call_form, self._nonce)
        if name == "tool_calls":
            return self._probes.call_form is not None
        return self._probes.writes_tools if name == "tools" else bool(self._probes.thoughts_name)

    def _takes_system(self) -> bool:
        with contextlib.suppress(Refused, Fatal):
            marked = self._marked(("system", "user", "assistant"))
            written = self._written(marked)
            is_found = isinstance(self._spans.find(marked, written, [2])[2], Reply)
            return is_found and self._marks.of(0) in written.text
        return False

    def _rewrites(self, thoughts: str | None) -> bool:
        probe = self._probes.two_thoughts(thoughts)
        with contextlib.suppress(Refused, Fatal):
            return _need_rows(self._spans.find(probe, self._written(probe), [1, 3]))
        return False

    def _marked(self, roles: tuple[str, ...]) -> Chat:
        return Chat([{"role": role, "content": self._marks.of(i)} for i, role in enumerate(roles)])

    def _written(self, chat: Chat, prompt: bool = False, template: Template | None = None) -> Written:
        text = self.text(chat, prompt, template)
        return split_blocks(text, self._blocks) if self.has_blocks else Written(text)

    def _written_of_marks(self, chat: Chat, prompt: bool, trace: Trace) -> Written:
        """Render a chat with marks, and record all operations of the template on marks in `trace`."""
        if self._watched is None:
            raise Unforeseen("the template cannot be watched")
        environment, template = self._watched
        environment.trace = trace
        return self._written(chat, prompt, template)

    @cached_property
    def _watched(self) -> tuple[Watched, Template] | None:
        """The template, compiled so that all its operations are recorded; None if that is impossible."""
        environment = Watched(self._date, self._blocks, Trace(self._marks), self._environment.json_texts)
        try:
            return environment, environment.compiled(self._source)
        except Exception:  # constant expressions are evaluated here, and may raise any exception
            return None


def _roles(chat: Chat) -> tuple[str, ...]:
    return tuple(message["role"] for message in chat.messages)


def _answer(
    pieces: list[tuple[str, bool, bool]], bos: bool, known: bool, more: str,
    rewritten: int = -1, needs_rows: str = "",
) -> dict[str, Any]:  # fmt: skip
    return {
        "pieces": pieces, "bos": bos, "known": known, "more": more, "rewritten": rewritten,
        "needs_rows": needs_rows,
    }  # fmt: skip


def _need_rows(replies: Found) -> bool:
    return any(isinstance(reply, Fault) and reply.needs_row for reply in replies.values())
