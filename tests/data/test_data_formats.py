"""Data formats: told by the records, labelled as FastChat labels what they mean, never read in part."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_formats import FORMATS, ROLE_CONTENT, TURNS, chat, converted, labelled, write_records
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.data_module import make_supervised_data_module
from fastsft.data.errors import DataError
from fastsft.data.label_report import check_dropped, format_lines, format_totals
from fastsft.sources.data_files import DataFile
from fastsft.sources.readers import read_records
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, hf_tokenizer

MODE, LENGTH = MODES[0], 128
TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODE, model_max_length=LENGTH)
FASTCHAT = make_labeller(TOKENIZER.native, LENGTH, 0)
SPANS = make_labeller(TOKENIZER.native, LENGTH, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))


def rows(seen: Any) -> list[tuple[list[int], list[tuple[int, int]]]]:
    dataset = seen.dataset
    return [(dataset.ids(i).tolist(), list(map(tuple, dataset.learned(i)))) for i in range(len(dataset))]


def by_fastchat(records: list[Any]) -> Any:
    from fastchat.train import train

    tokenizer = hf_tokenizer(MODE, LENGTH)
    return train.preprocess([record["conversations"] for record in records], tokenizer)


@pytest.mark.parametrize("name", FORMATS)
def test_labels_are_fastchats_of_the_converted_file(name: str, tmp_path: Path) -> None:
    path = write_records(tmp_path / "data.json", FORMATS[name])
    seen = labelled(path, FASTCHAT)
    assert not seen.faults
    theirs = by_fastchat(converted(path))
    ids, labels, mask = _C.padded_rows(seen.dataset, 0, len(TURNS), LENGTH, 0, mask_by_length=False)
    assert torch.equal(torch.from_numpy(ids), theirs["input_ids"])
    assert torch.equal(torch.from_numpy(labels), theirs["labels"])
    assert torch.equal(torch.from_numpy(mask), theirs["attention_mask"])
    assert (labels != -100).any()


@pytest.mark.parametrize("policy", [FASTCHAT, SPANS], ids=["fastchat", "spans"])
@pytest.mark.parametrize("name", ["messages", "dialogue", "chat", "alpaca", "prompt_completion_lists"])
def test_one_conversation_in_every_format_is_one_row(name: str, policy: Any, tmp_path: Path) -> None:
    whole = write_records(tmp_path / "whole.json", FORMATS["sharegpt"])
    other = write_records(tmp_path / "other.jsonl", FORMATS[name])
    assert rows(labelled(other, policy)) == rows(labelled(whole, policy))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("sharegpt", "d.json: ShareGPT, 3 records"),
        ("messages", "d.json: messages, 3 records"),
        ("dialogue", 'd.json: messages (as "dialogue"), 3 records; not used: topic'),
        ("chat", 'd.json: ShareGPT (as "chat"), 3 records'),
        ("alpaca", "d.json: Alpaca, 3 records; not used: text"),
        ("prompt_completion", "d.json: prompt/completion, 3 records"),
    ],
)
def test_the_line_that_names_a_format(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = labelled(write_records(Path("d.json"), FORMATS[name]), SPANS).report
    assert format_lines([DataFile("d.json")], report) == [line]
    again = _C.DataReport.from_json(report.to_json())
    assert format_lines([DataFile("d.json")], again) == [line]
    many = _C.label_inputs([_C.DataInput("d.json", "d.json") for _ in range(7)], SPANS).report
    assert format_lines([DataFile("d.json")] * 7, many) == [
        line.replace("d.json", "d.json and 6 more files").replace(" 3 ", " 21 ")
    ]
    assert format_totals(many) == [line.removeprefix("d.json: ").replace(" 3 ", " 21 ")]


@pytest.mark.parametrize(
    "records",
    [[{"input": "a", "output": "b"}] * 2, [1, 2], [{"data": [{"conversations": []}]}] * 2, [[], {"x": 1}]],
)
def test_records_of_no_format_are_called_by_none(records: list[Any], tmp_path: Path) -> None:
    report = labelled(write_records(tmp_path / "d.json", records), SPANS).report
    assert format_lines([DataFile("d.json")], report) == []
    assert format_totals(report) == ["none that is known, 2 records"]
    with pytest.raises(DataError, match="its records are of no data format that is read: Alpaca"):
        check_dropped("d.json", report, 1.0)
    mixed = labelled(write_records(tmp_path / "d.json", [*FORMATS["sharegpt"], *records]), SPANS).report
    assert len(format_lines([DataFile("d.json")], mixed)) == 1


def test_fields_of_messages_that_are_not_used_are_named(tmp_path: Path) -> None:
    record = {"messages": [{"role": "user", "content": "Hi", "name": None},
                           {"role": "assistant", "content": "Ho", "tool_calls": [1]}]}  # fmt: skip
    seen = labelled(write_records(tmp_path / "d.json", [record] * 3), SPANS)
    assert seen.report.formats[0].unused == ["a message's tool_calls"]
    many = {f"field {i}": i for i in range(40)}
    seen = labelled(write_records(tmp_path / "d.json", [{**record, **many}]), SPANS)
    assert len(seen.report.formats[0].unused) == 17 and seen.report.formats[0].unused[-1] == "..."


@pytest.mark.parametrize(
    ("record", "prompt"),
    [
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, "Add.\n1 2"),
        ({"instruction": "Add.", "input": None, "output": "3", "history": None, "system": None}, "Add."),
        ({"input": "1 2", "output": "3", "instruction": ""}, "1 2"),
        ('{"output": "no", "instruction": 5, "instruction": "Add.", "input": [], "output": "3"}', "Add."),
    ],
)
def test_the_user_says_instruction_and_input(record: Any, prompt: str, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(record if isinstance(record, str) else json.dumps(record), "utf-8")
    (read,) = converted(path)
    assert [message["value"] for message in read["conversations"]] == [prompt, "3"]


@pytest.mark.parametrize("context", ["input", "context"])
def test_a_question_with_its_context_and_history(context: str, tmp_path: Path) -> None:
    asked = {"instruction": "Add.", context: "1 2", "response": "3", "history": [["a", "b"]], "system": "s"}
    path = write_records(tmp_path / "d.json", [asked, {"instruction": "Say", "response": "so", context: ""}])
    first, second = converted(path)
    assert [message["value"] for message in first["conversations"]] == ["a", "b", "Add.\n1 2", "3"]
    assert [message["value"] for message in second["conversations"]] == ["Say", "so"]
    assert first["system"] == "s" and labelled(path, SPANS).report.formats[0].unused == []
    alike = {"instruction": "Add.", "input": "1 2", "output": "3", "history": [["a", "b"]], "system": "s"}
    alike_rows = rows(labelled(write_records(tmp_path / "a.json", [alike]), SPANS))
    assert rows(labelled(path, SPANS))[:1] == alike_rows
    swift = {"query": "c", "response": "d", "history": [["a", "b"]], "input": "x"}
    path = write_records(tmp_path / "d.json", [swift])
    assert [message["value"] for message in converted(path)[0]["conversations"]] == ["a", "b", "c", "d"]
    assert labelled(path, SPANS).report.formats[0].unused == ["input"]


@pytest.mark.parametrize(
    "history", ["", " [] ", [], "User: z", ["q0", "a0"], [{"q": "x", "a": "y"}], [["a"]], 5]
)
@pytest.mark.parametrize("names", [("question", "answer"), ("prompt", "response"), ("instruction", "output")])
def test_a_history_that_is_none(names: tuple[str, str], history: Any, tmp_path: Path) -> None:
    """Of a question another history is left out, with a line; of Alpaca it is a fault."""
    record = {names[0]: "q", names[1]: "a", "history": history}
    seen = labelled(write_records(tmp_path / "d.json", [record]), SPANS)
    is_nothing = history in ("", " [] ", [])
    if names[1] == "output" and not is_nothing:
        assert '"history" is ' in seen.report.entries["bad_field"].reason
        return
    assert not seen.faults and seen.report.formats[0].unused == ([] if is_nothing else ["history"])
    plain = labelled(write_records(tmp_path / "p.json", [{names[0]: "q", names[1]: "a"}]), SPANS)
    assert seen.dataset.ids(0).tolist() == plain.dataset.ids(0).tolist()
    assert seen.dataset.learned(0) == plain.dataset.learned(0)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"input": "a", "context": "b"}, '"context" and "input" both have a value; expected one of them'),
        ({"input": ["a"]}, "text is a list"),
        ({"response": None}, 'no "response"; expected instruction and response, and where there are, input'),
    ],
)
def test_faults_of_questions(more: dict[str, Any], reason: str, tmp_path: Path) -> None:
    sound = {"instruction": "x", "response": "y"}
    path = write_records(tmp_path / "d.json", [sound, {**sound, **more}])
    (fault,) = labelled(path, FASTCHAT).faults
    assert fault.record == 1 and reason in str(fault)


def test_the_system_text_of_alpaca_is_the_records(tmp_path: Path) -> None:
    record = {"instruction": "Hi", "output": "Ho", "system": "Be brief."}
    path = write_records(tmp_path / "d.json", [record])
    (text,) = [TOKENIZER.native.decode(ids) for ids, _ in rows(labelled(path, SPANS))]
    assert text == "<s> Be brief. USER: Hi ASSISTANT: Ho</s>"
    assert "system_ignored: noted 1" in labelled(path, FASTCHAT).report.summary()


def test_replies_of_a_prompt_are_not_learned(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
             {"role": "user", "content": "c"}]  # fmt: skip
    record = {"prompt": asked, "completion": [{"role": "assistant", "content": "d"}]}
    path = write_records(tmp_path / "d.json", [record])
    ((ids, learned),) = rows(labelled(path, SPANS))
    assert [TOKENIZER.native.decode(ids[begin:end]) for begin, end in learned] == [" d</s>"]
    (fault,) = labelled(path, FASTCHAT).faults
    assert "a reply of the prompt, which --mask_policy fastchat would learn" in str(fault)
    assert [message.get("train") for message in converted(path)[0]["conversations"]] == [
        None,
        False,
        None,
        None,
    ]


@pytest.mark.parametrize("mode", MODES)
def test_text_is_learned_whole_and_ends_with_eos(mode: str, tmp_path: Path) -> None:
    native = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode).native
    texts = ["Once upon a time,\nthere was", " x", "\u4f60\u597d </s> y"]
    path = write_records(tmp_path / "d.jsonl", [{"text": text, "meta": {}} for text in texts])
    spans = LabelSettings(mask_policy="spans", template="vicuna_v1.1")
    seen = labelled(path, make_labeller(native, LENGTH, 0, spans))
    tokenizer = hf_tokenizer(mode)
    expected = [[*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in texts[:2]]
    assert [ids for ids, _ in rows(seen)][:2] == expected
    for ids, learned in rows(seen):
        assert learned == [(1, len(ids))] and ids.count(tokenizer.eos_token_id) == 1
    (short, _) = rows(labelled(path, make_labeller(native, 4, 0, spans)))[0]
    assert short == expected[0][:4]
    (fault, *_) = labelled(path, FASTCHAT).faults
    assert '"text" is no conversation; --mask_policy spans learns it' in str(fault)


MIXED = [
    ("alpaca", "sharegpt", "expected Alpaca as in the rest of its file, got ShareGPT"),
    ("sharegpt", "alpaca", "expected ShareGPT as in the rest of its file, got Alpaca"),
    ("alpaca", "prompt_completion", "expected Alpaca as in the rest of its file, got prompt/completion"),
    ("dialogue", "chat", "expected messages (dialogue) as in the rest of its file, got ShareGPT (chat)"),
]


@pytest.mark.parametrize(("first", "then", "reason"), MIXED)
def test_a_file_of_two_formats_stops_whatever_the_rule_for_bad_records(
    first: str, then: str, reason: str, tmp_path: Path
) -> None:
    path = write_records(tmp_path / "d.jsonl", [*FORMATS[first], FORMATS[then][0]])
    skipping = LabelSettings(on_bad_sample="skip")
    for labeller in (FASTCHAT, SPANS, make_labeller(TOKENIZER.native, LENGTH, 0, skipping)):
        (fault,) = labelled(path, labeller).faults
        assert fault.record == 3 and reason in str(fault) and fault.remark == "other_format"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"instruction": "x"}, 'no "output"; an Alpaca record has'),
        ({"output": "x"}, 'no "instruction"; an Alpaca record has'),
        ({"instruction": "x", "output": None}, 'no "output"'),
        ({"instruction": "x", "output": "y", "history": "z"}, '"history" is text; expected a list of'),
        ({"instruction": "x", "output": "y", "history": [["a"]]}, '"history" is a list with a list of 1'),
        ({"instruction": "x", "output": "y", "history": [5]}, '"history" is a list with a number'),
        ({"instruction": 5, "output": "y"}, "text is a number"),
        ({"instruction": "x", "output": ["y"]}, "text is a list"),
        ({"instruction": "x", "input": {"a": 1}, "output": "y"}, "text is an object"),
        (7, "record is not an object"),
    ],
)
def test_wrong_types_are_faults_of_their_record(record: Any, reason: str, tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.jsonl", [*FORMATS["alpaca"], record])
    (fault,) = labelled(path, FASTCHAT).faults
    assert fault.record == 3 and reason in str(fault)
    seen = labelled(path, SPANS)
    assert not seen.faults and seen.report.num_excluded == 1
    parts: list[bytes] = []
    bad: list[bytes] = []
    summary = _C.convert_inputs([_C.DataInput("d", str(path))], "messages", False, parts.append, bad.append)
    assert (summary.num_records, summary.num_written, summary.num_faults) == (4, 3, 1)
    assert json.loads(b"".join(bad))["record"] == 3 and len(b"".join(parts).splitlines()) == 3


def test_what_is_of_no_format_names_its_fields(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [{"enquiry": "a", "answer": "b"}])
    (fault,) = labelled(path, FASTCHAT).faults
    assert 'no "conversations"; its fields are enquiry, answer' in str(fault)
    pair = [{"role": "user", "content": "a"}]
    (fault,) = labelled(write_records(path, [{"chosen": pair, "rejected": pair}]), FASTCHAT).faults
    assert "chosen, rejected: preference data" in str(fault) and "that list alone" not in str(fault)


def test_a_named_format_is_the_one_that_is_read(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", FORMATS["alpaca"])
    assert labelled(path, SPANS, "text").report.formats[0].name == "text"
    (fault, *_) = labelled(path, SPANS, "sharegpt").faults
    assert "expected ShareGPT" in str(fault)
    with pytest.raises(ValueError, match=r'--data_format: expected one of auto, alpaca, .*, got "csv"'):
        labelled(path, SPANS, "csv")
    named = write_records(path, [{"messages": FORMATS["messages"][0]["messages"]}])
    (fault,) = labelled(named, FASTCHAT, "sharegpt").faults
    assert fault.kind == "KeyError"  # as FastChat's own script


def test_every_registered_format_is_read(tmp_path: Path) -> None:
    """A new format is tested by adding records to tests/support/data_formats.py."""
    known = {"text", *(name.removesuffix("_lists") for name in FORMATS)} - {
        "dialogue",
        "chat",
        "prompt_response",
    }
    assert set(_C.data_formats()) == known
    for name in _C.data_formats():
        found = _C.find_data_format(name)
        assert found.title and found.fields and found.names


def test_detection_looks_past_records_at_fault(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [{}, 5, {"instruction": "x"}, *FORMATS["alpaca"]])
    seen = labelled(path, SPANS)
    assert seen.report.formats[0].name == "alpaca" and seen.report.num_excluded == 3


@pytest.mark.parametrize(
    "broken", ['{"output": "old", "instruction": "old", "prompt": "old", "x": nope}', "{", "7"]
)
def test_nothing_of_a_broken_line_is_in_the_next(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    whole = json.dumps({"instruction": "a", "output": "b"})
    path.write_text("\n".join([whole, broken, '{"instruction": "a"}', '{"output": "b"}', whole]))
    seen = labelled(path, SPANS)
    assert seen.report.num_records == 5 and seen.report.num_excluded == 3
    assert seen.report.entries["bad_field"].count == 2


def test_lazy_records_are_sharegpts(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", FORMATS["alpaca"])
    assert read_records([DataFile(str(path))]) == converted(path)
    args = SimpleNamespace(data_path=str(path), eval_data_path=None, lazy_preprocess=True, data_cache="none")
    lazy = make_supervised_data_module(TOKENIZER, args)["train_dataset"]
    theirs = by_fastchat(converted(path))
    assert torch.equal(lazy[1]["labels"], theirs["labels"][1])
    lazy.raw_data = lazy.raw_data[::-1]
    assert torch.equal(lazy[0]["input_ids"], theirs["input_ids"][2])


def test_the_cache_knows_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_records(tmp_path / "d.json", FORMATS["alpaca"])

    def load(data_format: str) -> Any:
        args = SimpleNamespace(
            data_path=str(path), eval_data_path=None, lazy_preprocess=False, mask_policy="spans",
            template="vicuna_v1.1", data_cache=str(tmp_path / "cache"), data_format=data_format,
        )  # fmt: skip
        return make_supervised_data_module(TOKENIZER, args)["train_dataset"].report

    for _ in range(2):  # labelled, then from the cache
        assert load("auto").formats[0].name == "alpaca"
        assert f"{path}: Alpaca, 3 records; not used: text" in capsys.readouterr().out
    assert load("text").formats[0].name == "text"


def test_a_weight_of_nought_is_not_learned(tmp_path: Path) -> None:
    """OpenAI's files say so; converted ones say it as `train`."""
    messages = chat(TURNS[1], ROLE_CONTENT)
    replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    marks = {at: number for number, at in enumerate(replies)}  # the first is not learned
    weighted = [{**message, "weight": marks.get(at, 0)} for at, message in enumerate(messages)]
    trained = [{**message, "train": bool(marks.get(at, 0))} for at, message in enumerate(messages)]
    found = [
        labelled(write_records(tmp_path / f"{i}.json", [{"messages": m}]), SPANS)
        for i, m in enumerate((weighted, trained, messages))
    ]
    assert rows(found[0]) == rows(found[1]) != rows(found[2])
    (record,) = converted(tmp_path / "0.json")
    assert [message.get("train") for message in record["conversations"]] == [False, False, False, True]
    assert not found[0].report.formats[0].unused
