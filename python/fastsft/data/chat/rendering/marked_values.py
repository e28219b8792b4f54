"""Checks of the values that a chat template handles while it renders a chat with marks (`watched.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Namespace

from fastsft.data.chat.rendering.marks import MARK_BEGIN
from fastsft.data.chat.rendering.sandbox import MarkedList, MarkedObject, Refused

SCALARS = (str, int, float, bool, type(None))


class Unforeseen(Refused):
    """An operation on a mark could have another result for the chat's text, and cannot be recorded."""


def check_call(called: Any, owner: Any, values: list[Any]) -> None:
    """Raise Unforeseen if the result of a call may depend on a text that a mark replaces.

    called: the function, which is not a method of a text. owner: the object whose method it is, or None.
    """
    if isinstance(called, LoopContext):  # a recursive loop
        gone_through(values[0] if values else None)
    elif called is dict or called is Namespace:
        for value in values:
            whole(value)
    elif is_marked(owner):
        raise Unforeseen("a text or a list of texts is looked into")
    elif isinstance(owner, list | tuple | LoopContext) and values and called.__name__ != "cycle":
        raise Unforeseen("a list is searched")
    elif not all(is_free(value) or isinstance(value, Macro) for value in values):
        raise Unforeseen(f"a call of {getattr(called, '__name__', type(called).__name__)}")


def is_simple(value: Any) -> bool:
    """True if a `Guard` can fill a value with texts and compare it: a scalar, or a list of scalars."""
    if type(value) in (list, tuple):
        return all(type(part) in SCALARS for part in value)
    return type(value) in SCALARS or isinstance(value, jinja2.Undefined | slice)


def is_free(value: Any) -> bool:
    """True if a value has no marks, and is therefore the same in all chats of the form."""
    if isinstance(value, MarkedObject | MarkedList):
        return False
    if isinstance(value, Mapping):
        return all(map(is_free, value)) and all(map(is_free, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_free, value))
    return not is_marked(value) and (is_simple(value) or is_escaped(value))


def is_marked(value: Any) -> bool:
    """True if a value is a text that contains a mark, or a list that contains such a text."""
    if isinstance(value, list | tuple):
        return any(map(is_marked, value))
    return isinstance(value, str) and MARK_BEGIN in value


def is_escaped(value: Any) -> bool:
    """True if a value is a text of a class such as Markup, which escapes texts that are joined to it."""
    return isinstance(value, str) and type(value) is not str


def is_closed(value: Any) -> bool:
    return isinstance(value, MarkedObject | MarkedList) and not value._is_open


def whole(value: Any) -> Any:
    """Return the value if its parts may be counted. Raise Unforeseen if a mark replaces the whole object."""
    if is_closed(value):
        raise Unforeseen("the parts of an object are looked at")
    return value


def gone_through(value: Any) -> Any:
    """Return the value if the template may iterate over it. Raise Unforeseen for a text with a mark."""
    if is_marked(value) and isinstance(value, str):
        raise Unforeseen("the letters of a text are gone through")
    return whole(value)


def unpacked(value: Any) -> Any:
    """Return the value if its parts may be assigned to variables or passed as arguments.

    Raise Unforeseen otherwise.
    """
    return named(gone_through(value))


def each_unpacked(values: Any) -> Any:
    """Return the values if the parts of each may be assigned to variables. Raise Unforeseen otherwise."""
    items = values if isinstance(gone_through(values), list | tuple | Mapping) else list(values)
    for value in items:
        unpacked(value)
    return items


def is_any(value: Any) -> int:
    """Return 1 if a value has any parts, otherwise 0. The template compares a length only with 0.

    The result is also right for the chat's texts, because marks never replace empty texts.
    """
    return min(len(whole(value)), 1)


def named(value: Any) -> Any:
    """Return the value. Raise Unforeseen if it is a dictionary with marks as keys.

    Two keys with different marks could be equal texts in a chat.
    """
    if type(value) is dict and any(map(is_marked, value)):
        raise Unforeseen("a text names a part of an object")
    return value


def look_up(obj: Any, key: Any) -> None:
    """Raise Unforeseen if a look-up `obj[key]` may depend on a text.

    This is so if the key is a mark, or if a mark replaces the whole object.
    """
    if is_closed(obj) or is_marked(key):
        raise Unforeseen("a text is looked up")


def members(left: Any, right: Any) -> Any:
    """Return the values that `left in right` compares: a dictionary's keys or a list's scalars."""
    whole(right)
    if isinstance(right, Mapping):
        return list(right)
    if isinstance(right, list | tuple) and type(left) in SCALARS:
        return [part for part in right if type(part) in SCALARS]
    return right


def tells_nothing(left: Any, right: Any) -> bool:
    """True if a comparison of two values reveals no text, because the result is always the same.

    This is so for a collection and a scalar, and for two collections if either is empty.
    """
    sides = [isinstance(side, list | tuple | Mapping) for side in (left, right)]
    if not any(sides):
        return False
    if all(sides):
        return not (left and right)
    return (type(right) if sides[0] else type(left)) in SCALARS


def is_of_kinds(messages: Any, attribute: Any, *others: Any) -> bool:
    """True if a filter selects messages by an attribute whose values have no marks, such as the role.

    others: further arguments of the filter, which must not have marks either.
    """
    if not isinstance(messages, list) or type(attribute) is not str or not attribute.isidentifier():
        return False
    if not all(isinstance(message, Mapping) and not is_closed(message) for message in messages):
        return False
    return is_free([*others, *(message.get(attribute) for message in messages)])


def in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def holds_marked(value: Any) -> bool:
    if isinstance(value, MarkedObject | MarkedList):
        return True
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(map(holds_marked, parts))
