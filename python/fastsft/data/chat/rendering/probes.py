"""Probe a chat template: which fields it writes, how it reads tool calls, and where it takes system messages.

Each probe puts a mark into all texts of a field and looks for the mark in the rendered text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from fastsft.data.chat.rendering.conversation import THOUGHTS, CallForm, Chat
from fastsft.data.chat.rendering.sandbox import Fatal, Refused

_USER, _REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}
_CALL_FORMS = tuple(CallForm(as_text, null) for null in (False, True) for as_text in (False, True))


class Probes:
    """Probes that find out which fields a template writes.

    text: renders a chat. nonce: 18 random digits, from which the probes make marks.
    """

    def __init__(self, text: Callable[[Chat], str], nonce: str) -> None:
        self.text, self._nonce = text, nonce
        # The id of the call has nine characters, because some templates accept no other length.
        self._id = f"{int(nonce) * 31 % 10**9:09}"
        self._value = f"{int(nonce) * 37 % 10**18:018}"  # the value of the call's argument

    @cached_property
    def writes_tools(self) -> bool:
        """True if the template writes a chat's tools."""
        return any(self._writes(chat, self._nonce) for chat in (self.tools, self.tools.first(1)))

    @property
    def tools(self) -> Chat:
        """A chat with a tool."""
        function = {
            "name": self._nonce,
            "description": self._nonce,
            "parameters": {"type": "object", "properties": {}},
        }
        return Chat([_USER, _REPLY], [{"type": "function", "function": function}])

    @cached_property
    def call_form(self) -> CallForm | None:
        """The first form of tool calls whose arguments the template writes as JSON.

        None if the template writes no calls.
        """
        marks = (self._nonce, self._id, self._value)
        for form in _CALL_FORMS:
            for chat in (self._calling(form), self._calling(form).first(2)):
                with contextlib.suppress(Refused, Fatal):
                    text = self.text(chat)
                    is_python = f"{{'x': '{self._value}'" in text
                    # A tool's result contains the id, too. In a chat with a result, the id therefore does not
                    # show that the template writes the call.
                    written = [
                        mark
                        for mark in marks
                        if mark in text and (mark != self._id or len(chat.messages) == 2)
                    ]
                    if written and not is_python:
                        return form
        return None

    @cached_property
    def thoughts_name(self) -> str:
        """The first name in THOUGHTS whose field the template writes; "" if it writes no thoughts."""
        for name in THOUGHTS:
            if any(self._writes(chat, self._nonce) for chat in self._thinking(name)):
                return name
        return ""

    def two_thoughts(self, name: str | None) -> Chat:
        """Return two turns with thoughts, in the field `name` or, if `name` is None, in the content."""
        in_text = {**_REPLY, "content": f"<think>\n{self._nonce}\n</think>\n\nHo"}
        return Chat([_USER, {**_REPLY, name: self._nonce} if name else in_text] * 2)

    def call_endings(self) -> tuple[str, str]:
        """Return the text from a call's last mark to its end, and the text between a call and its result.

        Both are "" if the template writes no calls.
        """
        if self.call_form is None:
            return "", ""
        with contextlib.suppress(Refused, Fatal):
            chat = self._calling(self.call_form)
            called, answered = (self.text(chat.first(count)) for count in (2, 3))
            if answered.startswith(called):
                begin = max(called.rfind(mark) for mark in (self._nonce, self._id, self._value))
                return called[begin:], answered[len(called) :]
        return "", ""

    def _calling(self, form: CallForm) -> Chat:
        """Return a chat of a user's text, a call, its result and a reply."""
        function: dict[str, Any] = {"name": self._nonce, "arguments": {"x": self._value}}
        if form.as_text:
            function["arguments"] = f'{{"x": "{self._value}"}}'
        call = {"id": self._id, "type": "function", "function": function}
        content = None if form.null_content else ""
        calling = {"role": "assistant", "content": content, "tool_calls": [call]}
        result = {"role": "tool", "content": "1", "name": "f", "tool_call_id": self._id}
        return Chat([_USER, calling, result, _REPLY])

    def _thinking(self, name: str) -> Iterator[Chat]:
        """Yield chats with thoughts in a reply or a tool call, in the first or a later turn."""
        reply = {**_REPLY, name: self._nonce}
        yield Chat([_USER, reply])
        yield Chat([_USER, _REPLY, _USER, reply])
        if self.call_form is None:
            return
        # The call gets other marks than the thoughts.
        calling = Probes(self.text, self._value)._calling(self.call_form)
        user, call, *others = calling.messages
        thinking = {**call, name: self._nonce}
        for turn in ([user, thinking], [user, thinking, *others], [user, call, others[0], reply]):
            yield Chat(turn)
            yield Chat([_USER, _REPLY, *turn])

    def _writes(self, chat: Chat, mark: str) -> bool:
        with contextlib.suppress(Refused, Fatal):
            return mark in self.text(chat)
        return False


Text = Callable[[Chat], str]
# Traits about ids of tool calls; a template has at most a single trait. short_call_ids: it needs ids of
# exactly nine characters. named_call_ids: it writes no names, and needs ids of the form
# "functions.NAME:NUMBER". call_ids: it needs ids of any form.
CALL_IDS = ("short_call_ids", "named_call_ids", "call_ids")
# second_system: the template writes a second system message after the first. later_system: it writes a system
# message between turns.
INPUTS = (*CALL_IDS, "second_system", "later_system")


def takes_input(name: str, text: Text, form: CallForm | None, nonce: str) -> bool:
    """True if the template has the trait `name`, one of INPUTS.

    text: renders a chat. form: the form of the template's tool calls; None if it writes no calls. nonce: 18
    random digits.
    """
    if name == "second_system":
        return _writes(text, [_system("A", nonce), _system("B", nonce), _USER, _REPLY], 2, nonce)
    if name == "later_system":
        return _writes(text, [_USER, _REPLY, _system("A", nonce), _USER, _REPLY], 1, nonce)
    return form is not None and name == _call_ids(text, form, nonce)


def _call_ids(text: Text, form: CallForm, nonce: str) -> str:
    """Return the trait in CALL_IDS that the template has; "" if it needs no ids."""
    short, name = nonce[:9], f"f{nonce[9:]}"
    with_id = _rendered(text, _calling(form, name, short))
    without = _rendered(text, _calling(form, name, None))
    if with_id is None or (without is not None and short not in with_id):
        return ""
    if short in with_id and name not in with_id:
        return "named_call_ids"
    return "call_ids" if _rendered(text, _calling(form, name, f"call_{nonce}")) else "short_call_ids"


def _calling(form: CallForm, name: str, call_id: str | None) -> Chat:
    """Return a chat of a user's text, a call, its result and a reply."""
    arguments: Any = '{"x": 1}' if form.as_text else {"x": 1}
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    result = {"role": "tool", "content": "1"}
    if call_id is not None:
        call["id"] = result["tool_call_id"] = call_id
    content = None if form.null_content else ""
    return Chat([_USER, {"role": "assistant", "content": content, "tool_calls": [call]}, result, _REPLY])


def _system(mark: str, nonce: str) -> dict[str, Any]:
    return {"role": "system", "content": f"{mark}{nonce}"}


def _writes(text: Text, messages: list[dict[str, Any]], count: int, nonce: str) -> bool:
    written = _rendered(text, Chat(messages)) or ""
    return all(f"{mark}{nonce}" in written for mark in "AB"[:count])


def _rendered(text: Text, chat: Chat) -> str | None:
    with contextlib.suppress(Refused, Fatal):
        return text(chat)
    return None
