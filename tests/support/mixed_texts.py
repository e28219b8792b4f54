"""Texts that nobody would write: every code point, and runs of several scripts in random order."""

from __future__ import annotations

import random
from collections.abc import Iterator

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz     ",
    "ABC abc 0123456789 .,:;!?-_()[]{}<>/\\'\"\n\t",
    "aeiou  ▁▁ é ß ø ñ ü \u2019 \u201c \u201d \u2013 … ▂ \u2580",
    "你好世界的一是了我 不在人们有来他",
    "Привет мир как дела здравствуй ",
    "😀😂👍🏽❤️\u200d🔥 a",
    "ﷺ한국어 日本語カタカナ हिन्दी العربية \u00a0\u3000\ufeff",
    "<s>/unk ▁",
)


def random_texts(count: int, seed: int) -> Iterator[str]:
    """Runs of letters of several scripts, of spaces and marks, of anything."""
    draw = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 5)):
            if draw.random() < 0.1:
                parts.append(chr(draw.choice((draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)))))
            else:
                alphabet = draw.choice(ALPHABETS)
                parts.append("".join(draw.choices(alphabet, k=min(int(draw.expovariate(0.15)) + 1, 90))))
        yield "".join(parts)


def code_points(step: int) -> Iterator[str]:
    """Each code point alone, between letters, and twice behind a space."""
    for code in (*range(0, 0xD800, step), *range(0xE000, 0x110000, step)):
        yield from (chr(code), f"a{chr(code)}b", f" {chr(code)}{chr(code)} x")


def in_parts(texts: Iterator[str], size: int = 20_000) -> Iterator[list[str]]:
    part: list[str] = []
    for text in texts:
        part.append(text)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
