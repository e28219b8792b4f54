"""`fastsft data convert`: every record is written or named, and a file is whole or not there."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import fastsft
from data_formats import FORMATS, TURNS, chat, converted, write_records
from fastsft.cli import main as cli
from golden_text import GOLDEN, MODES

SINGLE = ("prompt_completion", "prompt_response", "question_answer")


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    status = cli.main(["data", "convert", *map(str, words)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return status, said.out, said.err


@pytest.mark.parametrize("name", FORMATS)
def test_sharegpt_and_messages(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_records(tmp_path / "in.jsonl", FORMATS[name])
    assert run(capsys, source, tmp_path / "a.json")[0] == 0
    assert run(capsys, source, tmp_path / "b.jsonl", "--format", "messages")[0] == 0
    turns = [turn[:1] for turn in TURNS] if name in SINGLE else TURNS
    array = json.loads((tmp_path / "a.json").read_text("utf-8"))
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text("utf-8").splitlines()]
    assert [record["conversations"] for record in array] == [
        chat(each, ("from", "value", "human", "gpt")) for each in turns
    ]
    assert [record["messages"] for record in lines] == [
        chat(each, ("role", "content", "user", "assistant")) for each in turns
    ]


def test_tool_calls_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    records = [{"messages": [{"role": "user", "content": "a"}, call]}]
    (tmp_path / "in.json").write_text(json.dumps(records))
    out = tmp_path / "out.json"
    assert cli.main(["data", "convert", str(tmp_path / "in.json"), str(out)]) == 1
    assert "tool calls would be lost" in capsys.readouterr().err and not out.exists()


def test_dollys_context_ends_the_question(tmp_path: Path) -> None:
    records = [{"instruction": "Who?", "context": "Goethe wrote it.", "response": "Goethe."}]
    (tmp_path / "in.json").write_text(json.dumps(records))
    assert cli.main(["data", "convert", str(tmp_path / "in.json"), str(tmp_path / "out.json")]) == 0
    talk = json.loads((tmp_path / "out.json").read_text())[0]["conversations"]
    assert [turn["value"] for turn in talk] == ["Who?\nGoethe wrote it.", "Goethe."]


def test_ids_system_texts_and_train_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b", "train": False},
        {"role": "narrator", "content": None},
    ]
    source = write_records(tmp_path / "in.json", [{"id": "x\ud800\n", "train": True, "messages": messages}])
    assert run(capsys, source, tmp_path / "out.json")[0] == 0
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == [
        {"id": "x\ud800\n", "train": True, "conversations": [
            {"from": "system", "value": "S"}, {"from": "human", "value": "a"},
            {"from": "gpt", "value": "b", "train": False}, {"from": "narrator", "value": None}]}
    ]  # fmt: skip
    assert run(capsys, tmp_path / "out.json", tmp_path / "back.jsonl", "--format", "messages")[0] == 0
    (back,) = converted(tmp_path / "back.jsonl", "messages")
    assert [message["role"] for message in back["messages"]] == ["system", "user", "assistant", "narrator"]


def test_numbers_stay_and_null_is_no_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [7, 1.5, -(2**70), "7", None, ["a"], True, float("nan")]
    records = [{"id": each, "instruction": "i", "output": "o"} for each in ids]
    source = write_records(tmp_path / "in.jsonl", records)
    assert run(capsys, source, tmp_path / "out.jsonl")[0] == 0
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each.get("id", "none") for each in written] == [
        7, 1.5, -(2**70), "7", "none", '["a"]', "true", "NaN"]  # fmt: skip
    model = GOLDEN / "tokenizers" / MODES[0]
    seen = fastsft.inspect(model, [{**each, "output": ""} for each in records[3:5]])
    assert [row.name for row in seen.records] == ["7", "1"]


@pytest.mark.parametrize("as_text", [True, False])
def test_definitions_of_tools_stay(as_text: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls that are text, as Hermes has them: without the definitions the prompt is another."""
    tools = [{"type": "function", "function": {"name": "f", "description": "a\nb"}}]
    records = [
        {"conversations": chat(TURNS[0], ("from", "value", "human", "gpt")),
         "tools": json.dumps(tools) if as_text else tools},
        {"conversations": chat(TURNS[0], ("from", "value", "human", "gpt")), "tools": None},
    ]  # fmt: skip
    source = tmp_path / "in.json"
    source.write_text(json.dumps(records, indent=1))
    status, said, _ = run(capsys, source, tmp_path / "out.jsonl", "--format", "messages")
    assert status == 0 and "not used" not in said
    first, second = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert first["tools"] == records[0]["tools"] and "tools" not in second


def test_packed_files_weights_and_several_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(FORMATS["alpaca"][0]).encode()))
    other = write_records(tmp_path / "b.json", FORMATS["messages"])
    status, out, _ = run(capsys, f"{packed}:3,{other}", tmp_path / "out.json")
    assert status == 0
    assert f"{packed}: Alpaca, 1 record; not used: text" in out and f"{other}: messages, 3 records" in out
    assert "6 records as sharegpt" in out
    assert len(json.loads((tmp_path / "out.json").read_text())) == 6


def test_an_output_that_exists_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_records(tmp_path / "in.json", FORMATS["alpaca"]), tmp_path / "out.json"
    out.write_text("mine")
    status, _, said = run(capsys, source, out)
    assert status == 2 and "out.json exists" in said and "--overwrite" in said and out.read_text() == "mine"
    assert run(capsys, source, out, "--overwrite")[0] == 0 and out.read_text() != "mine"
    assert run(capsys, source, tmp_path / "out.txt")[0] == 2
    (tmp_path / "folder.json").mkdir()
    assert run(capsys, source, tmp_path / "folder.json", "--overwrite")[0] == 2
    assert run(capsys, tmp_path / "absent.json", tmp_path / "new.json")[0] == 2
    before = source.read_text()
    for target, report in ((source, None), (tmp_path / "a.json", source), (tmp_path / "a.json",) * 2):
        flags = ["--overwrite", *([] if report is None else ["--report_bad", report])]
        status, _, said = run(capsys, source, target, *flags)
        assert status == 2 and "is named twice among IN, OUT and --report_bad" in said
    assert source.read_text() == before
    status, _, said = run(capsys, source, tmp_path / "a.json", "--report_bad", out)
    assert status == 2 and "out.json exists; give --overwrite" in said


def test_records_at_fault_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [{"instruction": "x\x1b[2J"}, {"instruction": 5, "output": "y"}]
    source, out = write_records(tmp_path / "in.jsonl", [*FORMATS["alpaca"], *bad]), tmp_path / "out.jsonl"
    before = sorted(tmp_path.iterdir())
    status, _, said = run(capsys, source, out)
    assert status == 1 and "2 of 5 records cannot be converted, nothing is written" in said
    assert 'record 3: no "output"' in said and "record 4, message 0: text is a number" in said
    assert sorted(tmp_path.iterdir()) == before and "\x1b" not in said
    listed = tmp_path / "bad.jsonl"
    status, told, _ = run(capsys, source, out, "--on_bad_sample", "skip", "--report_bad", listed)
    assert status == 0 and "3 records as sharegpt, 2 left out" in told
    assert [json.loads(line)["record"] for line in listed.read_text().splitlines()] == [3, 4]
    assert len(out.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        ('[{"instruction": "a", "output": "b"}, nope]', 1, "not JSON at byte"),
        ('{"text": "a"}', 1, "no record can be converted"),
        ("", 1, "the file is empty"),
        ("[]", 1, "no record can be converted"),
        ('{"instruction": "' + "a" * 2000 + '", "output": "b"}', 1, "--max_record_bytes"),
        ('{"instruction": ' + "[" * 300 + "]" * 300 + ', "output": "b"}', 1, "nested deeper"),
    ],
)
def test_nothing_is_left_of_what_fails(
    content: str, status: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.json").write_text(content)
    words = ("--max_record_bytes", 1000, "--on_bad_sample", "skip")
    code, _, said = run(capsys, tmp_path / "in.json", tmp_path / "out.json", *words)
    assert code == status and reason in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]
