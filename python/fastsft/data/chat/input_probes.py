"""Probes of a chat template: ids of calls that it needs, and places where it writes system messages.

Part of the process that renders (`render.py`): imports nothing but jinja2 and the standard library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from fastsft.data.chat.asked_chat import CallForm, Chat
from fastsft.data.chat.sandbox import Fatal, Refused

Text = Callable[[Chat], str]
# Forms of ids of calls, of which a template needs one or none: nine characters and no other number of them;
# "functions.NAME:NUMBER" in place of the name; any.
CALL_IDS = ("short_call_ids", "named_call_ids", "call_ids")
# And system messages: another next to the first, and one between turns.
INPUTS = (*CALL_IDS, "second_system", "later_system")
_USER, _REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}


def takes_input(name: str, text: Text, form: CallForm | None, nonce: str) -> bool:
    """True if the template has the trait `name`, one of INPUTS.

    text: the template. form: of its calls, None where it writes none. nonce: 18 digits.
    """
    if name == "second_system":
        return _writes(text, [_system("A", nonce), _system("B", nonce), _USER, _REPLY], 2, nonce)
    if name == "later_system":
        return _writes(text, [_USER, _REPLY, _system("A", nonce), _USER, _REPLY], 1, nonce)
    return form is not None and name == _call_ids(text, form, nonce)


def _call_ids(text: Text, form: CallForm, nonce: str) -> str:
    """The name of the form of ids that it needs; "" for none."""
    short, name = nonce[:9], f"f{nonce[9:]}"
    with_id = _rendered(text, _calling(form, name, short))
    without = _rendered(text, _calling(form, name, None))
    if with_id is None or (without is not None and short not in with_id):
        return ""
    if short in with_id and name not in with_id:
        return "named_call_ids"
    return "call_ids" if _rendered(text, _calling(form, name, f"call_{nonce}")) else "short_call_ids"


def _calling(form: CallForm, name: str, call_id: str | None) -> Chat:
    """A user's text, a call, its result and a reply."""
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
