"""Message lists read from Python objects give what the same lists give as JSON text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import make_labeller
from fastsft.tokenizer import Tokenizer
from golden_text import CONVERSATIONS, GOLDEN, human_gpt, read_records

WIDTH, PAD = 256, 0
NATIVE = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_nonlegacy").native
LABELLER = make_labeller(NATIVE, WIDTH, PAD)


def outcome(labelled: Any) -> Any:
    rows = range(len(labelled.dataset))
    return (
        [(labelled.dataset.ids(row).tolist(), labelled.dataset.learned(row)) for row in rows],
        [(fault.kind, fault.record, str(fault)) for fault in labelled.faults],
        labelled.report.warnings,
        labelled.report.summary(),
    )


def from_json(sources: Any) -> Any:
    records = [{"conversations": source} for source in sources]
    return outcome(_C.label_text(json.dumps(records), LABELLER))


@pytest.mark.parametrize("name", [*CONVERSATIONS, "edge_cases"])
def test_real_conversations(name: str) -> None:
    records = read_records(name)
    sources = [record["conversations"] for record in records if "conversations" in record]
    plain = [source for source in sources if _C.label_lists([source], LABELLER) is not None]
    assert len(plain) > 0.9 * len(sources)
    assert outcome(_C.label_lists(plain, LABELLER)) == from_json(plain)


ODD: dict[str, Any] = {
    "nothing": [],
    "empty": [[]],
    "tuples": (tuple(human_gpt("Hi", "Ho")),),
    "values": [
        human_gpt("a", value) for value in ("", None, False, True, 0, 1, -2.5, 0.0, float("nan"), 10**30)
    ],
    "roles": [[{"from": role, "value": "x"}] for role in ("human", "gpt", "system", "", None, 3, True)],
    "missing": [[{"from": "human"}], [*human_gpt("a"), {"from": "gpt"}]],
    "beyond_ascii": [human_gpt("é 你好 😀 \x00", "ÿ\u2028")],
    "other_fields": [[{"from": "human", "value": "a", "id": [1, {"x": 2}], 5: 6}, *human_gpt("b", "c")[1:]]],
    "faults_in_many": [human_gpt("a", "b"), human_gpt("a", 3), [], human_gpt("c", "d")],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_lists(name: str) -> None:
    labelled = _C.label_lists(ODD[name], LABELLER)
    assert labelled is not None
    assert outcome(labelled) == from_json(ODD[name])


class Text(str):
    """A str of somebody's own."""


@pytest.mark.parametrize(
    "sources",
    [
        "text",
        [human_gpt("a", "b"), None],
        [[["human", "a"]]],
        [human_gpt("a", ["list"])],
        [human_gpt("a", {"b": 1})],
        [human_gpt("a\ud800", "b")],
        [human_gpt(Text("a"), "b")],
        [[{"role": "user", "content": "a"}]],
        [[{}]],
        [[{"value": "x"}]],
        [[{"from": "human", "value": "a", "train": False}]],
    ],
)
def test_what_is_not_plain_is_left_to_json(sources: Any) -> None:
    assert _C.label_lists(sources, LABELLER) is None
