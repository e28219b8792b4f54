"""Preference data is refused whatever is next to it: what it marks as rejected must not be learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_formats import labelled, write_records
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.sources.data_files import DataFile
from fastsft.sources.readers import read_records
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0], model_max_length=128)
SPANS = make_labeller(TOKENIZER.native, 128, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
FASTCHAT = make_labeller(TOKENIZER.native, 128, 0)
ASKED = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
         {"role": "user", "content": "q2"}]  # fmt: skip
FROM = [{"from": "human", "value": "q1"}, {"from": "gpt", "value": "a1"}, {"from": "human", "value": "q2"}]
PAIR = {"chosen": "GOOD", "rejected": "BAD"}
PREFERENCE = "preference data, which supervised training cannot use as it is"
KTO = "it says whether the reply is wanted (preference data, as for KTO)"
RECORDS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ASKED, **PAIR}, PREFERENCE, ""),
    ({"conversations": FROM, "chosen": {"from": "gpt", "value": "GOOD"}, "rejected": {}}, PREFERENCE, ""),
    ({"messages": ASKED[:1], **PAIR}, PREFERENCE, ""),
    ({"dialogue": ASKED[:2], **PAIR}, PREFERENCE, "messages"),
    ({"chosen": ASKED[:2], "rejected": "BAD"}, PREFERENCE, "messages"),
    ({"rejected": ASKED[:2], "chosen": "GOOD"}, PREFERENCE, ""),
    ({"instruction": "q", "output": "a", **PAIR}, PREFERENCE, "alpaca"),
    ({"prompt": "q", "completion": "a", **PAIR}, PREFERENCE, "prompt_completion"),
    ({"question": "q", "answer": "a", **PAIR}, PREFERENCE, "question_answer"),
    ({"text": "q", **PAIR}, PREFERENCE, "text"),
    ({"prompt": "q", "completion": "BAD", "label": False}, KTO, "prompt_completion"),
    ({"prompt": ASKED, "completion": ASKED[1:2], "label": True}, KTO, "prompt_completion"),
    ({"messages": ASKED[:2], "label": False}, KTO, "messages"),
    ({"prompt": "q", "completion": "a", "label": 1}, '"label" is 0 or 1: ' + KTO, "prompt_completion"),
    ({"prompt": "q", "completion": "BAD", "label": 0.0}, KTO, "prompt_completion"),
    ({"prompt": ASKED, "completion": "a", "label": "0"}, KTO, "prompt_completion"),
]


@pytest.mark.parametrize(("record", "reason", "named"), RECORDS)
def test_preference_data_is_refused(record: dict[str, Any], reason: str, named: str, tmp_path: Path) -> None:
    for number, labeller in enumerate((SPANS, FASTCHAT)):
        path = write_records(tmp_path / f"{number}.jsonl", [record] * 2)
        fault = labelled(path, labeller).faults[0]
        assert reason in str(fault) and fault.remark == "other_format" and fault.always_stops
        assert (f"fastsft data convert --data_format {named})" in str(fault)) is bool(named)
        assert named or "--data_format" not in str(fault)
    if named:
        seen = labelled(path, SPANS, named)
        assert not seen.faults and len(seen.dataset) == 2


def test_one_such_record_is_found_among_others(tmp_path: Path) -> None:
    rows = [{"messages": ASKED[:2], "chosen": None, "rejected": None, "label": None}] * 3
    bad = {"messages": ASKED, "chosen": ASKED, "rejected": ASKED, "label": None}
    assert not labelled(write_records(tmp_path / "d.json", rows), SPANS).faults
    (fault,) = labelled(write_records(tmp_path / "d.json", [*rows, bad]), SPANS).faults
    assert fault.record == 3 and PREFERENCE in str(fault)


def test_tables_have_their_columns_read(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    plain = {"messages": ASKED[:2], "chosen": None, "rejected": None, "label": None}
    for number, (record, sound) in enumerate([
        ({**plain, "label": False}, False), ({**plain, "label": 1}, True), (plain, True),
        ({**plain, "messages": ASKED, "chosen": "x", "rejected": "y"}, False),
        ({**plain, "chosen": "x", "rejected": "y"}, True),
    ]):  # fmt: skip
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([plain, record]), path)
        assert bool(labelled(path, SPANS).faults) is not sound


@pytest.mark.parametrize(
    "more", [{"chosen": "x"}, {"rejected": 0}, {"label": 1}, {"label": "x"}, {"label": None, "labels": True}]
)
def test_what_is_none(more: dict[str, Any], tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [{"messages": ASKED[:2], **more}])
    assert not labelled(path, SPANS).faults
    path = write_records(tmp_path / "d.json", [{"text": "A film.", "label": True}])
    assert not labelled(path, SPANS).faults


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "q1", "messages": ASKED[:2], "chosen": ASKED[:2], "rejected": ASKED},
        {"conversations": FROM[:2], **PAIR},
        {"question": "q", "answer": "a1", "label": True},
        {"prompt": "q", "completion": "a1", "label": 2},
        {"prompt": "q", "completion": "a1", "label": "good"},
    ],
)
def test_the_reply_that_is_wanted_is_learned(record: dict[str, Any], tmp_path: Path) -> None:
    seen = labelled(write_records(tmp_path / "d.json", [record]), SPANS)
    assert not seen.faults
    ((begin, end),) = seen.dataset.learned(0)
    assert TOKENIZER.native.decode(seen.dataset.ids(0)[begin:end]).strip() == "a1</s>"
    assert set(seen.report.formats[0].unused) <= {"prompt", "chosen", "rejected", "label"}
    assert seen.report.formats[0].unused


def test_a_script_that_reads_records_is_refused_them(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [{"conversations": FROM, **PAIR}])
    with pytest.raises(ValueError, match=r"d\.json: record 0: .* are preference data"):
        read_records([DataFile(str(path))])
    escaped = [{"conversations": [{"from": "human", "value": '{"label": true}'}, FROM[1]], "id": "label"}]
    assert read_records([DataFile(str(write_records(path, escaped)))]) == escaped
