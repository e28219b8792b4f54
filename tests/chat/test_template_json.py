"""The filter `tojson` of chat templates gives the texts of the json module, also of objects that it knows."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from fastsft.data.chat.rendering.sandbox import JsonTexts

ODD: list[Any] = [None, True, 1.5, -3, 'a "b"\n\\ \u2028\x00é你', float("inf"), {}, [], {1: [2, {"a": "\n"}]}]


def value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(3) if depth < 4 else 0
    if kind == 0:
        return draw.choice(ODD)
    inner = [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return inner if kind == 1 else {f"k{i}\n": each for i, each in enumerate(inner)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indent": 4},
        {"indent": 1},
        {"indent": 0},
        {"indent": 2, "sort_keys": False},
        {"separators": (",", ":")},
        {"ensure_ascii": True, "indent": 3},
    ],
)
def test_texts_are_those_of_json(options: dict[str, Any]) -> None:
    draw, texts = random.Random(1), JsonTexts()
    for _ in range(2000):
        one = value(draw)
        expected = json.dumps(one, **{"ensure_ascii": False, **options})
        assert texts.write(one, **options) == expected == texts.write(one, **options)


def test_equal_objects_and_other_options_have_texts_of_their_own() -> None:
    texts, one = JsonTexts(), {"a": [1]}
    assert texts.write(one) == '{"a": [1]}' and texts.write(one, separators=(",", ":")) == '{"a":[1]}'
    for number in range(5000):  # of objects whose place in memory may be the same
        assert texts.write({"a": number}) == f'{{"a": {number}}}'
