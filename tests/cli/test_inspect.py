"""`fastsft inspect` and `fastsft data report`: what is marked is what is learned, and the status says so."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastsft
from fastsft import _C
from fastsft.arguments import DataArguments
from fastsft.cli import main as cli
from fastsft.data import make_supervised_data_module
from fastsft.inspection.data_report import write_data_report
from fastsft.inspection.inspection_text import inspection_text, record_text
from golden_text import conversation_file, human_gpt, read_records, read_rows
from inspected_models import LLAMA, write_byte_level_model
from malformed import KINDS
from malformed import record_text as record_json

DUMMY = str(conversation_file("dummy_conversation"))
SHAREGPT = str(conversation_file("sharegpt_multi_turn"))
MARKED = re.compile("\u27e6(.*?)\u27e7", re.S)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_level_model(tmp_path_factory.mktemp("byte_level"))


def run(*words: Any) -> int:
    return cli.main([str(word) for word in words])


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(map(record_json, records)) + "\n", "utf-8")
    return path


def replies(record: dict[str, Any]) -> list[str]:
    return [message["value"] for message in record["conversations"] if message["from"] == "gpt"]


@pytest.mark.parametrize("policy", ["fastchat", "spans"])
def test_marks_are_the_replies_sentencepiece(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--mask_policy", policy, "--template", "vicuna_v1.1", "-n", 40)
    assert run("inspect", "--model", LLAMA, "--data", DUMMY, *flags) == 0
    expected = [text for each in read_records("dummy_conversation")[:40] for text in replies(each)]
    marked = MARKED.findall(capsys.readouterr().out.partition("data set\n")[0])
    assert marked == [part for reply in expected for part in (f" {reply}", "</s>")]


def test_marks_are_the_replies_byte_level(byte_level: Path) -> None:
    records = read_records("dummy_conversation")[:40]
    seen = fastsft.inspect(byte_level, records, mask_policy="spans", template="chatml", n=40)
    for record, source in zip(seen.records, records, strict=True):
        marked = MARKED.findall(record_text(record))
        assert marked == [part for reply in replies(source) for part in (reply, "<|im_end|>")]
        assert record.num_turn_ends == len(replies(source))
        assert b"".join(map(record.bytes_of, record.tokens)) == record.text


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_marks_are_the_replies_of_the_models_own_template(byte_level: Path, tmp_path: Path) -> None:
    for file in byte_level.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    records = read_records("dummy_conversation")[:5]
    seen = fastsft.inspect(tmp_path, records, mask_policy="spans", template="model")
    assert seen.labelling["template"] == "model"
    for record, source in zip(seen.records, records, strict=True):
        expected = [part for reply in replies(source) for part in (reply, "<|im_end|>")]
        assert MARKED.findall(record_text(record)) == expected


@pytest.mark.parametrize("length", [128, 2048])
def test_numbers_are_those_of_the_original(length: int) -> None:
    golden = read_rows("labels", f"sharegpt_multi_turn.llama2_legacy.{length}")
    seen = fastsft.inspect(LLAMA, SHAREGPT, model_max_length=length, n=len(golden))
    assert [record.num_learned for record in seen.records] == [row["label_tokens"] for row in golden]
    assert [record.outcome == "dropped" for record in seen.records] == [row["dropped"] for row in golden]
    assert sum(size * rows for size, rows in seen.lengths.items()) == seen.report.num_tokens
    assert sum(size * rows for size, rows in seen.learned.items()) == sum(
        row["label_tokens"] for row in golden
    )
    assert seen.num_rows == len(golden)
    assert seen.num_padding == len(golden) * length - seen.report.num_tokens


@pytest.mark.parametrize("policy", ["fastchat", "spans"])
@pytest.mark.parametrize("case", KINDS, ids=lambda case: case[0])
def test_every_kind_of_malformed_record(case: Any, policy: str) -> None:
    _, record, fastchat, spans = case
    expected = fastchat if policy == "fastchat" else spans
    outcome, _, remarks = expected.partition(": ")
    seen = fastsft.inspect(
        LLAMA, [record], mask_policy=policy, template="vicuna_v1.1", model_max_length=96,
        data_format="sharegpt",
    )  # fmt: skip
    (found,) = seen.records
    names = {remark.name for remark in found.remarks}
    assert found.outcome == {"stops": "stopped", "kept": "noted"}.get(outcome, outcome)
    assert set(remarks.split(", ")) <= names or not remarks
    assert outcome in str(seen) or outcome in ("stops", "noted")
    assert seen.is_learnable == (found.num_learned > 0)


def test_lines_about_the_data_end_at_words() -> None:
    """On a terminal; texts of the data stay as they are."""
    text = "a word " * 30
    records = [{"conversations": [*human_gpt(text, "Ho"), {"from": "tool", "value": ""}]}]
    seen = fastsft.inspect(LLAMA, records, mask_policy="spans", template="vicuna_v1.1", model_max_length=256)
    whole, narrow = inspection_text(seen), inspection_text(seen, width=60)
    assert whole.split() == narrow.split()
    lines = [line for line in narrow.splitlines() if text not in line]
    assert max(map(len, whole.splitlines())) > 100 >= max(map(len, lines)) and f"{text}" in narrow
    assert any(line.startswith(" " * 12) for line in lines)


def test_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"id": "a", "conversations": human_gpt("Hi", "Ho")}
    empty = write(tmp_path / "nothing.jsonl", {"conversations": human_gpt("Hi")})
    stopped = write(tmp_path / "stopped.jsonl", good, {"conversations": []})
    broken = tmp_path / "broken.json"
    broken.write_text('[{"conversations": nope\x1b[2J}]')
    for command in (("inspect", "--data"), ("data", "report")):
        label = ("--model", LLAMA)
        assert run(*command, DUMMY, *label) == 0
        assert run(*command, empty, *label) == 1
        assert "nothing is learned" in capsys.readouterr().out
        assert run(*command, stopped, *label) == 1
        assert "training would stop: 1 record" in capsys.readouterr().out
        assert run(*command, stopped, *label, "--on_bad_sample", "skip") == 0
        assert run(*command, broken, *label) == 1
        message = capsys.readouterr().err
        assert "not JSON at byte 19" in message and "\x1b" not in message
        for wrong in (
            (tmp_path / "missing\x1b[2J", *label),
            (DUMMY, "--model", tmp_path / "missing"),
            (DUMMY, *label, "--template", "nobody"),
            (DUMMY, *label, "--model_max_length", "0"),
            (DUMMY, *label, "--role_map", "x"),
        ):
            assert run(*command, *wrong) == 2, wrong
            assert "\x1b" not in capsys.readouterr().err
    assert run("inspect", "--data", DUMMY, "--model", LLAMA, "--html", tmp_path / "no" / "page.html") == 2
    for flag in (("--only", "bad"), ("-n", "-1"), ("--record", "nobody")):
        assert run("inspect", "--data", DUMMY, "--model", LLAMA, *flag) == 2
    with pytest.raises(SystemExit) as end:
        run("inspect", "--data", DUMMY)
    assert end.value.code == 2


def test_choice_of_records() -> None:
    def ids(**options: Any) -> list[str]:
        seen = fastsft.inspect(LLAMA, SHAREGPT, model_max_length=512, **options)
        assert len(seen.records) <= seen.num_matching
        return [record.id for record in seen.records]

    everything = [record["id"] for record in read_records("sharegpt_multi_turn")]
    assert ids(n=3) == everything[:3]
    assert ids(record="chat_7") == ["chat_7"]
    assert ids(record=7) == everything[7:8]
    with pytest.raises(ValueError, match="has the id or number 999; numbers begin with 0"):
        ids(record=999)
    assert ids(n=0) == []
    drawn = ids(n=20, random=True)
    assert drawn == ids(n=20, random=True) != ids(n=20, random=True, seed=1)
    assert drawn != everything[:20] and len(set(drawn)) == 20
    assert [id for id in everything if id in drawn] == drawn
    truncated = fastsft.inspect(LLAMA, SHAREGPT, n=2000, only="truncated")
    assert len(truncated.records) == truncated.report.num_truncated == truncated.num_matching == 331
    assert all(len(record.tokens) == 512 and record.num_cut > 0 for record in truncated.records)


def test_a_tokenizer_keeps_its_settings() -> None:
    tokenizer = fastsft.Tokenizer.from_pretrained(LLAMA, model_max_length=300)
    tokenizer.pad_token = "</s>"
    records = read_records("dummy_conversation")[:2]
    assert fastsft.inspect(tokenizer, records).width == 300
    assert fastsft.inspect(tokenizer, records, model_max_length=100).width == 100
    assert (tokenizer.model_max_length, tokenizer.pad_token) == (300, "</s>")


def test_a_cut_record_shows_what_is_cut() -> None:
    seen = fastsft.inspect(LLAMA, [{"conversations": human_gpt("Hi", "word " * 90)}], model_max_length=64)
    (record,) = seen.records
    *kept, cut = record.parts()
    assert cut.kind == "cut" and b"".join(part.text for part in (*kept, cut)) == record.text
    assert record.num_turn_ends == 0
    assert f"{record.num_cut} tokens beyond the limit are cut" in str(seen)


HOSTILE = "a\x1b[2J\x07\x9b31m\r\x00\u202eb\u2066\ud800 \u27e6c\u27e7"


@pytest.mark.parametrize("colour", [False, True])
def test_nothing_of_the_data_moves_the_cursor(colour: bool) -> None:
    record = {"id": HOSTILE, "conversations": human_gpt(HOSTILE, HOSTILE)}
    for policy in ("fastchat", "spans"):
        seen = fastsft.inspect(LLAMA, [record], mask_policy=policy, template="vicuna_v1.1")
        for tokens in (False, True):
            text = record_text(seen.records[0], colour=colour, tokens=tokens) + str(seen)
            rest = re.sub("\x1b\\[[0-9;]+m", "", text) if colour else text
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", rest)
        assert "\\x1b[2J" in str(seen)
        assert (
            not colour or policy == "fastchat" or "\x1b[30;42m" in record_text(seen.records[0], colour=True)
        )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("inspect", "--model", LLAMA, "--data", DUMMY, "-n", 1)

    def has_colours(*more: str) -> bool:
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        assert run(*words, *more) == 0
        return "\x1b[" in screen.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colours()
    assert not has_colours("--color", "never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours()
    assert has_colours("--color", "always")


def test_tokens_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "--model", LLAMA, "--data", DUMMY, "-n", 1, "--tokens") == 0
    rows = re.findall(r"^ +(\d+) +(\d+)  (learned|end|) ", capsys.readouterr().out, re.M)
    labels = _C.label_file(
        DUMMY, fastsft.inspection.inspect.prepare(LLAMA, fastsft.data.chat.labelling.LabelSettings()).labeller
    )
    assert [int(row[1]) for row in rows] == labels.dataset.ids(0).tolist()
    learned = {i for begin, end in labels.dataset.learned(0) for i in range(begin, end)}
    assert {int(row[0]) for row in rows if row[2]} == learned
    assert [int(row[1]) for row in rows if row[2] == "end"] == [2, 2]


@pytest.mark.parametrize("policy", ["fastchat", "spans"])
def test_report_has_the_numbers_of_training(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--mask_policy", policy, "--template", "vicuna_v1.1", "--model_max_length", 512, "--json")
    assert run("data", "report", SHAREGPT, "--model", LLAMA, *flags) == 0
    shown = json.loads(capsys.readouterr().out)
    tokenizer = fastsft.Tokenizer.from_pretrained(LLAMA, model_max_length=512)
    tokenizer.pad_token = tokenizer.unk_token
    data_args = DataArguments(data_path=SHAREGPT, mask_policy=policy, template="vicuna_v1.1")
    module = make_supervised_data_module(tokenizer, data_args)
    written = json.loads(write_data_report(tmp_path, module).read_text())["train"]
    assert written.items() <= shown.items()
    assert set(shown) - set(written) == {"faults", "model_max_length", "padding_tokens"}


def test_report_without_a_model_counts_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "report", DUMMY, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    each = [reply for record in read_records("dummy_conversation") for reply in replies(record)]
    assert shown["learned_tokens"] == sum(len(f" {reply}".encode()) + 1 for reply in each)
    assert (shown["unit"], shown["mask_policy"], shown["records"]) == ("bytes", "spans", 500)
    assert run("data", "report", DUMMY) == 0
    text = capsys.readouterr().out
    assert "lengths are bytes; --model DIR" in text and "learned bytes of a row" in text
    assert "padding" not in text and "at most" not in text


def test_report_without_a_model_says_that_another_policy_may_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "data.jsonl", read_records("dummy_conversation")[0], {"id": "empty"})
    assert run("data", "report", data) == 0
    said = capsys.readouterr().out
    assert "1 records are left out by --mask_policy spans; FastChat's labels may stop" in said
    assert run("data", "report", data, "--on_bad_sample", "error") == 1
    text = capsys.readouterr().out
    assert "--on_bad_sample skip leaves them out" in text and "keeps what is sound" not in text


def test_report_promises_no_skip_of_what_stops_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = {**read_records("dummy_conversation")[0], "weight": 0.5}
    alone = write(tmp_path / "alone.jsonl", marked)
    for rule in ("error", "skip"):
        assert run("data", "report", alone, "--on_bad_sample", rule) == 1
        text = capsys.readouterr().out
        assert "weight" in text and "1 of them stop a run whatever --on_bad_sample says" in text
        assert "--on_bad_sample skip leaves" not in text
    both = write(tmp_path / "both.jsonl", {"id": "empty"}, marked)
    assert run("data", "report", both, "--on_bad_sample", "error") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "2 records cannot be read; the first:" in text and '"weight" is 0.5' in text
    assert "--on_bad_sample skip leaves the others out" in text and "1 of them stop a run" in text


@pytest.mark.parametrize("template", sorted(_C.chat_templates()))
def test_report_without_a_model_knows_every_template(
    template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "report", DUMMY, "--template", template, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["template"], shown["kept"]) == (template, 500) and shown["learned_tokens"] > 60_000


@pytest.mark.parametrize(("flags", "message"), [
    (("--mask_policy", "fastchat"), "add --model DIR, or leave it out"),
    (("--model_max_length", 512), "--model_max_length: is of a model's tokenizer; add --model DIR"),
    (("--template", "model"), "no model is given; add --model, or name a template"),
    (("--template", "llama3"), 'unknown chat template "llama3"'),
])  # fmt: skip
def test_report_without_a_model_refuses_what_needs_one(
    flags: tuple[Any, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "report", DUMMY, *flags) == 2
    assert message in capsys.readouterr().err


def test_standard_input_and_a_closed_pipe() -> None:
    command = [sys.executable, "-m", "fastsft.cli.main", "inspect", "--model", str(LLAMA), "--data", "-"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with (
        open(DUMMY, "rb") as data,
        subprocess.Popen(
            [*command, "-n", "500"],
            stdin=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"standard input: record 0 (id identity_0)")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_weights_of_files(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", *({"conversations": human_gpt("Hi", "Ho")} for _ in range(10)))
    seen = fastsft.inspect(LLAMA, f"{one}:2,{DUMMY}:0.5", n=1000)
    assert seen.report.num_records == 20 + 250
    assert seen.num_matching == len(seen.records) == 10 + 250
