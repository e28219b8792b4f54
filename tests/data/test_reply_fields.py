"""A prompt as a list of messages, and the reply to it under another name: only the reply is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_formats import converted, labelled, write_records
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.sources.data_files import DataFile
from fastsft.sources.readers import read_records
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0], model_max_length=128)
SPANS = make_labeller(TOKENIZER.native, 128, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
ASKED = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
         {"role": "user", "content": "q2"}]  # fmt: skip
QUESTION = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
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


@pytest.mark.parametrize("prompt", ["input", "prompt", "query", "context"])
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


@pytest.mark.parametrize("name", ["messages", "conversations", "dialogue"])
@pytest.mark.parametrize("value", ["TARGET", REPLY], ids=["text", "list"])
def test_a_list_without_replies_is_a_prompt(name: str, value: Any, tmp_path: Path) -> None:
    path = write_records(
        tmp_path / "d.jsonl", [{name: QUESTION, "answer": value}, {name: FROM[2:], "answer": "x"}]
    )
    assert learned(path) == [["TARGET</s>"], ["x</s>"]]
    assert labelled(path, SPANS).report.formats[0].column == f"{name}/answer"


@pytest.mark.parametrize("name", ["messages", "conversations", "dialogue"])
@pytest.mark.parametrize("asked", [ASKED, FROM, [*ASKED[:2], {"role": "tool", "content": "r"}]])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_conversation_that_may_be_a_prompt_is_a_fault(
    name: str, asked: Any, at: int, tmp_path: Path
) -> None:
    """The others of its file are learned as they are, wherever it is."""
    is_from = "from" in asked[0]
    replied = [*asked[:2], *([] if is_from else ASKED[2:] + REPLY)]
    records = [{name: replied, "answer": "META"}] * 2
    records.insert(at, {name: asked, "answer": "META"})
    path = write_records(tmp_path / "d.jsonl", records)
    expected = [["a1</s>"] if is_from else ["a1</s>", "TARGET</s>"]] * 2
    assert learned(path) == expected
    entry = labelled(path, SPANS).report.entries["bad_field"]
    assert f'the messages of "{name}" hold replies and end with the user, and "answer" may be' in entry.reason
    flag = "sharegpt" if is_from else "messages"
    assert f"--data_format {flag} learns the replies that the list holds" in entry.reason
    path = write_records(tmp_path / "d.jsonl", [{name: asked, "answer": "META"}])
    assert learned(path, flag) == [["a1</s>"]]


def test_such_a_record_in_a_file_of_prompts(tmp_path: Path) -> None:
    prompts = [{"messages": QUESTION, "answer": "x"}]
    path = write_records(tmp_path / "d.jsonl", [*prompts, {"messages": ASKED, "answer": "META"}])
    assert learned(path) == [["x</s>"]]
    assert "hold replies and end with the user" in labelled(path, SPANS).report.entries["bad_field"].reason
    for other in (REPLIED, QUESTION[:1]):
        path = write_records(tmp_path / "d.jsonl", [*prompts, {"messages": other, "answer": "META"}])
        (fault,) = labelled(path, SPANS).faults
        assert fault.record == 1 and fault.remark == "other_format"
        assert "got messages; divide the file by format, or name its format: --data_format" in str(fault)


@pytest.mark.parametrize("value", ["", " ", [], 42, 1.5, True])
@pytest.mark.parametrize("first", [ASKED, REPLIED])
def test_what_is_no_reply_is_not_used(first: Any, value: Any, tmp_path: Path) -> None:
    records = [{"messages": messages, "output": value} for messages in (first, REPLIED, ASKED)]
    plain = [{"messages": record["messages"]} for record in records]
    expected = learned(write_records(tmp_path / "p.jsonl", plain))
    assert learned(write_records(tmp_path / "d.jsonl", records)) == expected
    assert len(expected) == 3


def test_a_prompt_with_an_empty_reply(tmp_path: Path) -> None:
    """Of a list that is named as a prompt nothing is learned but the reply, also where the first is empty."""
    path = write_records(
        tmp_path / "d.jsonl", [{"input": ASKED, "output": ""}, {"input": ASKED, "output": "x"}]
    )
    assert learned(path)[-1] == ["x</s>"] and "a1" not in str(learned(path))


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
        ({"messages": QUESTION, "response": "x", "answer": "y"},
         'of "messages" end with the user, and "response" and "answer" may be the reply: which is to be '
         'learned is not clear; name the list "prompt" and the reply to it "completion"'),
        ({"input": ASKED, "output": REPLY[0]}, '"output" is an object; expected text or a list of messages'),
        ({"input": ASKED, "target": 42}, '"target" is a number; expected text or a list of messages: write '
         "the reply as one of them, or leave the field out"),
        ({"prompt": QUESTION[:1], "response": "r"},
         'the messages of "prompt" do not end with the user, whom "response" could answer; expected'),
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
    prompt = {"messages": QUESTION, "output": "x"}
    path = write_records(tmp_path / "d.jsonl", [{"messages": REPLIED}] * 3 + [prompt])
    (fault,) = labelled(path, SPANS).faults
    assert fault.record == 3
    assert "expected messages as in the rest of its file, got prompt/completion (messages/output)" in str(
        fault
    )
    path = write_records(tmp_path / "d.jsonl", [prompt, {"messages": REPLIED}])
    (fault,) = labelled(path, SPANS).faults
    assert fault.record == 1 and "expected prompt/completion (messages/output)" in str(fault)
    path = write_records(tmp_path / "d.jsonl", [prompt, {"messages": QUESTION}])
    assert learned(path) == [["x</s>"]]
    assert (
        labelled(path, SPANS).report.entries["bad_field"].reason.startswith('no "output"; expected messages')
    )


def test_a_named_format_is_read_as_it_is(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [{"messages": ASKED, "output": "x"}])
    assert learned(path, "messages") == [["a1</s>"]]
    assert learned(path, "prompt_completion") == [["x</s>"]]


def test_a_script_that_reads_records_is_refused_them(tmp_path: Path) -> None:
    record = {"conversations": FROM, "response": "x"}
    for more in ({"answer": "y"}, {}):
        path = write_records(tmp_path / "d.json", [{**record, **more}])
        with pytest.raises(ValueError, match="which is to be learned is not clear; --data_format sharegpt"):
            read_records([DataFile(str(path))])
    assert json.loads(path.read_text()) == read_records([DataFile(str(path))], data_format="sharegpt")
    assert _C.detect_data_format(_C.DataInput("d", str(path))) == ("sharegpt", "")
