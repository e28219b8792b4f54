"""A prompt as a list of messages, and the reply to it under another name: only the reply is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_formats import converted, labelled, write_records
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.sources.data_files import DataFile, read_records
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0], model_max_length=128)
SPANS = make_labeller(TOKENIZER.native, 128, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
ASKED = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
         {"role": "user", "content": "q2"}]  # fmt: skip
REPLIED = [*ASKED, {"role": "assistant", "content": "a2"}]
REPLY = [{"role": "assistant", "content": "TARGET"}]
FROM = [{"from": "human", "value": "q1"}, {"from": "gpt", "value": "a1"}, {"from": "human", "value": "q2"}]


def learned(path: Path, data_format: str = "auto") -> list[list[str]]:
    """The learned texts of each row."""
    seen = labelled(path, SPANS, data_format)
    assert not seen.faults, seen.faults
    dataset = seen.dataset
    return [
        [TOKENIZER.native.decode(dataset.ids(row)[begin:end]).strip() for begin, end in dataset.learned(row)]
        for row in range(len(dataset))
    ]


@pytest.mark.parametrize("prompt", ["input", "prompt", "messages", "conversations", "dialogue"])
@pytest.mark.parametrize("reply", ["completion", "response", "output", "answer", "target"])
@pytest.mark.parametrize("value", ["TARGET", REPLY], ids=["text", "list"])
def test_only_the_reply_is_learned(prompt: str, reply: str, value: Any, tmp_path: Path) -> None:
    records = [{prompt: ASKED, reply: value, "category": "chat"}, {reply: value, prompt: FROM}]
    path = write_records(tmp_path / "d.jsonl", records)
    assert learned(path) == [["TARGET</s>"], ["TARGET</s>"]]
    (use,) = labelled(path, SPANS).report.formats
    assert use.name == "prompt_completion" and use.unused == ["category"]
    assert use.column == ("" if (prompt, reply) == ("prompt", "completion") else f"{prompt}/{reply}")
    assert [message["value"] for message in converted(path)[0]["conversations"]] == [
        "q1",
        "a1",
        "q2",
        "TARGET",
    ]
    assert [message.get("train") for message in converted(path)[0]["conversations"]][1] is False
    assert read_records([DataFile(str(path))]) == converted(path)


def test_the_same_as_a_table(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist([{"input": ASKED, "target": "TARGET", "n": 1.5}] * 2)
    parquet.write_table(table, tmp_path / "d.parquet")
    assert learned(tmp_path / "d.parquet") == [["TARGET</s>"]] * 2


@pytest.mark.parametrize(
    "record",
    [
        {"messages": REPLIED, "answer": "42", "solution": "x"},
        {"messages": REPLIED, "prompt": "q1", "response": None},
        {"conversation": REPLIED, "output": "x"},
        {"messages": ASKED, "response": None},
    ],
)
def test_messages_with_a_reply_are_the_conversation(record: Any, tmp_path: Path) -> None:
    (texts,) = learned(write_records(tmp_path / "d.json", [record]))
    assert texts[0] == "a1</s>" and "TARGET" not in "".join(texts)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": ASKED, "response": "x", "answer": "y"},
         'of "messages" end with the user, and "response" and "answer" may be the reply: which is to be '
         'learned is not clear; name the list "prompt" and the reply to it "completion"'),
        ({"input": ASKED, "output": REPLY[0]}, '"output" is an object; expected text or a list of messages'),
        ({"input": ASKED, "target": 42}, '"target" is a number; expected text'),
        ({"prompt": REPLIED, "response": "x"},
         'the messages of "prompt" end with a reply, and "response" may be another'),
        ({"history": REPLIED, "query": "q", "response": "x"}, 'the messages of "history" end with a reply'),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_refused(record: Any, reason: str, tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [record])
    (fault,) = labelled(path, SPANS).faults
    assert reason in str(fault) and fault.remark == "other_format" and fault.always_stops


def test_one_such_record_in_a_file_of_others(tmp_path: Path) -> None:
    path = write_records(
        tmp_path / "d.jsonl", [{"messages": REPLIED}] * 3 + [{"messages": ASKED, "output": "x"}]
    )
    (fault,) = labelled(path, SPANS).faults
    assert fault.record == 3
    assert "expected messages as in the rest of its file, got prompt/completion (messages/output)" in str(
        fault
    )
    path = write_records(tmp_path / "d.jsonl", [{"messages": ASKED, "output": "x"}, {"messages": REPLIED}])
    (fault,) = labelled(path, SPANS).faults
    assert fault.record == 1 and "expected prompt/completion (messages/output)" in str(fault)
    path = write_records(tmp_path / "d.jsonl", [{"messages": ASKED, "output": "x"}, {"messages": ASKED}])
    assert learned(path) == [["x</s>"]]
    assert (
        labelled(path, SPANS).report.entries["bad_field"].reason.startswith('no "output"; expected messages')
    )


def test_a_named_format_is_read_as_it_is(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [{"messages": ASKED, "output": "x"}])
    assert learned(path, "messages") == [["a1</s>"]]
    assert learned(path, "prompt_completion") == [["x</s>"]]


def test_a_script_that_reads_records_is_refused_them(tmp_path: Path) -> None:
    record = {"conversations": FROM, "response": "x", "answer": "y"}
    path = write_records(tmp_path / "d.json", [record])
    with pytest.raises(ValueError, match="which is to be learned is not clear"):
        read_records([DataFile(str(path))])
    assert json.loads(path.read_text()) == read_records([DataFile(str(path))], data_format="sharegpt")
    assert _C.detect_data_format(_C.DataInput("d", str(path))) == ("sharegpt", "")
