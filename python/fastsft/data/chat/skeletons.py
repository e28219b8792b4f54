"""Skeletons: texts that a chat template writes around marks, in the place of values that it only writes.

Chats of one form share a skeleton: the places of replies in it are found once, and moved to each chat's text
where that is the skeleton with the chat's values. Part of the process that renders (`render.py`): imports
nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import NamedTuple

from fastsft.data.chat.asked_chat import Chat
from fastsft.data.chat.pieces import Piece
from fastsft.data.chat.reply_spans import Found, ReplySpans, Written

_MOST_SKELETONS = 1 << 22  # characters
_SHORT = 9  # characters of a mark; some templates take only ids of so many


class Skeleton(NamedTuple):
    """The text of a chat of marks."""

    chat: Chat
    written: Written
    pieces: list[Piece]
    found: Found  # of the replies that were asked for


class Marks:
    """Texts that no record has, by number.

    nonce: 18 digits, because a template may change the case of what it writes.
    """

    def __init__(self, nonce: str) -> None:
        self._long = f"\ue000{nonce}-%05d\ue001"
        self._short = f"\ue000{nonce[:2]}%05d\ue001"
        self._pattern = re.compile(f"\ue000(?:{nonce}-|{nonce[:2]})(\\d{{5}})\ue001")

    def of(self, number: int, size: int = 0) -> str:
        """The mark of a number; size: of a text whose length may count."""
        return (self._short if size == _SHORT else self._long) % number

    def cut(self, text: str) -> list[Piece]:
        """The text in pieces: first control text, then a mark and control text in turn."""
        pieces, at = [], 0
        for mark in self._pattern.finditer(text):
            pieces.append(Piece(text[at : mark.start()], -1, at))
            pieces.append(Piece(mark.group(), int(mark.group(1)), mark.start()))
            at = mark.end()
        pieces.append(Piece(text[at:], -1, at))
        return pieces


class Skeletons:
    """Skeletons by what their chats have in common.

    render: the template. spans: finds its replies.
    """

    def __init__(self, marks: Marks, render: Callable[[Chat, bool], Written], spans: ReplySpans) -> None:
        self._marks, self._render, self._spans = marks, render, spans
        self._known: dict[Hashable, Skeleton] = {}
        self._size = 0  # characters of all of them

    def get(self, key: Hashable, chat: Chat, wanted: list[int]) -> Skeleton:
        """That of the key, with the places of the replies `wanted`, or why they have none.

        chat: of marks, the same for each chat of this key.
        """
        known = self._known.get(key)
        if known is None:
            if self._size > _MOST_SKELETONS:
                self._known, self._size = {}, 0
            known = self._known[key] = self.make(chat)
            self._size += len(known.written.text)
        missing = [i for i in wanted if i not in known.found]
        if missing:
            known.found.update(self._spans.find(known.chat, known.written, missing))
        return known

    def make(self, chat: Chat, prompt: bool = False) -> Skeleton:
        """A new one, of which no reply is found yet."""
        written = self._render(chat, prompt)
        return Skeleton(chat, written, self._marks.cut(written.text), {})
