"""Tells whether a chat template writes all that a reply has.

Imports nothing but the standard library: it is part of the rendering process.
"""

from __future__ import annotations

from typing import Any

from fastsft.data.chat.asked_chat import THOUGHTS


def is_whole(message: dict[str, Any], text: str, begin: int, end: int) -> bool:
    """True if the span has the reply's content and thoughts."""
    texts = [message.get(name) or "" for name in ("content", *THOUGHTS)]
    return all(_is_written(each, text, begin, end) for each in texts)


def loses_call(message: dict[str, Any], span: str) -> bool:
    """True if a call of the reply is not in the span: learned, it would teach to stop where a call comes."""
    return not all(_is_called(call, span) for call in message.get("tool_calls", ()))


def _is_written(content: str, full: str, begin: int, end: int) -> bool:
    """True if the span has the content, or ends with it: a prompt may have its beginning.

    White space does not count.
    """
    if content.strip() in full[begin:end]:
        return True
    text = full[max(begin - len(content), 0) : end]
    return "".join(content.split()) in "".join(text.split())


def _is_called(call: Any, span: str) -> bool:
    """By its name or, where the template writes none, by its id."""
    function = call.get("function", call)
    names = (function.get("name") if isinstance(function, dict) else None, call.get("id"))
    marks = [name for name in names if isinstance(name, str) and name]
    return not marks or any(mark in span for mark in marks)
