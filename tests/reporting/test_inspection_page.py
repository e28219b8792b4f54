"""The page of an inspection: data stays text, nothing is loaded, learned tokens are marked."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

import fastsft
from fastsft.inspection.inspection_page import _chart
from fastsft.inspection.inspection_text import bars, bins, median
from golden_text import conversation_file, human_gpt
from inspected_models import LLAMA

SCRIPT = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>\" onmouseover='alert(1) <!-- ]]> &lt;"
)
HOSTILE = SCRIPT + "\x00\x1b[31m\u2028\u202e\ud800"


class Page(HTMLParser):
    """Elements by name, attributes, and the text of the page's data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.records: list[Any] = []
        self._is_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        self._is_data = ("id", "records") in attrs

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.records = json.loads(data)


def inspect(*records: Any, **options: Any) -> Any:
    return fastsft.inspect(LLAMA, records, mask_policy="spans", template="vicuna_v1.1", **options)


def test_hostile_data_stays_text() -> None:
    hostile = {"id": HOSTILE, "conversations": human_gpt(HOSTILE, HOSTILE)}
    unread = {"id": HOSTILE, "conversations": [{"from": HOSTILE, "value": HOSTILE}]}
    calm = {"id": "a", "conversations": human_gpt("a", "b")}
    page = Page(inspect(hostile, unread).html())
    twin = Page(inspect(calm, {"conversations": [{"from": "x", "value": "a"}]}).html())
    assert page.elements.count("script") == twin.elements.count("script") == 2
    assert "img" not in page.elements
    assert {name for name, _ in page.attributes} == {name for name, _ in twin.attributes}
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert SCRIPT in "".join(map(shown, page.records[0]["texts"]))
    assert page.records[1]["messages"][0][1].startswith(SCRIPT)
    assert not re.search("[\x00-\x08\x0b-\x1f\ud800-\udfff]", inspect(hostile, unread).html())


def shown(token: Any) -> str:
    return token if isinstance(token, str) else token[1]


def test_records_hold_ids_places_and_labels() -> None:
    seen = inspect({"conversations": human_gpt("Hi", "Ho \U0001f600!")})
    (record,) = seen.records
    (row,) = Page(seen.html()).records
    assert row["ids"] == [token.id for token in record.tokens]
    assert row["at"] == [token.begin for token in record.tokens]
    assert [kind != "0" for kind in row["kinds"]] == [token.is_learned for token in record.tokens]
    assert row["kinds"].endswith("12") and row["texts"][0] == ["", "<s>"]
    pieces = [each.encode() if isinstance(each, str) else bytes.fromhex(each[0]) for each in row["texts"]]
    assert b"".join(pieces) == record.text
    assert ["f0", "\U0001f600"] in row["texts"]


def test_page_is_alone_and_follows_the_theme() -> None:
    text = fastsft.inspect(LLAMA, conversation_file("dummy_conversation"), n=3).html()
    assert not re.search(r"https?:|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<rect") == sum(len(bins(each, 24)) for each in counts_of_dummy())


def counts_of_dummy() -> list[dict[int, int]]:
    seen = fastsft.inspect(LLAMA, conversation_file("dummy_conversation"), n=0)
    return [seen.lengths, seen.learned]


def test_a_thousand_records_are_drawn_when_they_are_opened() -> None:
    seen = fastsft.inspect(LLAMA, conversation_file("sharegpt_multi_turn"), n=800)
    page = Page(seen.html())
    assert page.elements.count("details") == 800 and page.elements.count("span") < 3000


def test_a_notebook_gets_the_same_page() -> None:
    seen = inspect({"conversations": human_gpt("Hi", "<b>")})
    assert re.fullmatch(r"<Inspection of .*: [\d,]+ records, .* learned, \d+ faults>", repr(seen))
    frame = Page(seen._repr_html_())
    assert frame.elements == ["iframe"]
    assert dict(frame.attributes)["srcdoc"] == seen.html()
    assert dict(frame.attributes)["sandbox"] == "allow-scripts"


@pytest.mark.parametrize("most", [1, 5, 12, 24])
@pytest.mark.parametrize("values", [[0], [7, 7, 7], [0, 1, 2, 3], [3, 100, 2048], list(range(0, 9000, 37))])
def test_bins_hold_every_value_once(values: list[int], most: int) -> None:
    counts = {value: values.count(value) for value in values}
    found = bins(counts, most)
    assert 1 <= len(found) <= max(most, 1)
    assert [each.count for each in found] == [
        sum(each.begin <= value < each.end for value in values) for each in found
    ]
    assert sum(each.count for each in found) == len(values)
    assert median(counts) == sorted(values)[(len(values) - 1) // 2]


def test_bars_are_as_long_as_their_rows_are_many() -> None:
    lines = bars({0: 1000, 1: 500, 3: 1}, width=40)
    assert [line.count("\u2588") for line in lines] == [40, 20, 0, 0]
    assert "\u258f" in lines[3] and "\u258f" not in lines[2]
    assert bars({}) == [] and median({}) == 0


def test_the_axis_ends_at_the_longest_row() -> None:
    """Also where its bin goes further: 40 to 80 are bins of two."""
    texts = re.findall(r'text-anchor="end">([\d,]+)</text>', _chart("Tokens of a row", {40: 1, 80: 3}))
    assert texts == ["3", "0", "80"]
