"""Sample replies in the log, on the loss page, in the notebook and at trackers; prompts that are refused."""

from __future__ import annotations

import json
import os
import types
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.chat.prompts import Prompts
from fastsft.notebook.view import RunState, TrainingResult, run_html
from fastsft.reporting.loss_reports import write_loss_files
from fastsft.reporting.samples import sample_lines, samples_html
from fastsft.tokenizer import Tokenizer
from fastsft.trackers import tracker as tracking
from fastsft.trackers.tensorboard import TensorBoardTracker
from fastsft.trainer.sample_files import Question, read_prompts
from fastsft.trainer.samples import check_sample_prompts
from published_models import write_published
from reporting.test_trackers import MODEL, Recorder, needs, run_script, scalars_and_texts

HISTORY: list[dict[str, Any]] = [
    {"loss": 2.0, "step": 1},
    {"samples": [{"prompt": "Who?", "reply": "I <b>am</b>"}, {"prompt": "x" * 400, "reply": ""}], "step": 2},
    {"eval_loss": 1.5, "step": 2},
    {
        "samples": [{"prompt": "Who?", "reply": "a\nmodel"}, {"prompt": "x" * 400, "reply": "y\x1b[31m"}],
        "step": 4,
    },
]


def test_lines_for_a_terminal() -> None:
    text = sample_lines(HISTORY[3]["samples"], 4)
    assert text.splitlines()[:4] == ["step 4, 2 sample replies:", "  > Who?", "    a", "    model"]
    assert "\x1b" not in text and "  > ... xxx" in text and len(text) < 450
    assert sample_lines(HISTORY[1]["samples"][1:], 2).endswith("    (nothing)")


def test_the_loss_page_and_the_notebook(tmp_path: Path) -> None:
    state = TrainerState(global_step=4, max_steps=4, log_history=HISTORY)
    write_loss_files(tmp_path, state, "run", "finished", 1.0)
    page = (tmp_path / "loss.html").read_text()
    assert "I &lt;b&gt;am&lt;/b&gt;" in page and "a<br>model" in page and "<td class='step'>2</td>" in page
    run = RunState(log_history=HISTORY)
    assert "a<br>model" in run_html(run)
    assert samples_html([{"loss": 1.0, "step": 1}]) == ""
    result = TrainingResult(tmp_path, {}, HISTORY, 4, 1)
    assert [sample["reply"] for sample in result.samples] == ["a\nmodel", "y\x1b[31m"]
    assert TrainingResult(tmp_path, {}, HISTORY[:1], 4, 1).samples == []
    with_data = [{"samples": [{"prompt": "p", "reply": "r", "expected": "e"}], "step": 1}]
    assert "<td class='step'>data</td><td>e</td>" in samples_html(with_data)


def tell(tracker: Any, args: TrainingArguments) -> None:
    state, control = TrainerState(max_steps=4), TrainerControl()
    tracker.on_train_begin(args, state, control, model=MODEL)
    for entry in HISTORY:
        state.global_step = entry["step"]
        tracker.on_log(
            args, state, control, logs={k: v for k, v in entry.items() if k != "step"}, model=MODEL
        )
    tracker.on_train_end(args, state, control, model=MODEL)


def test_tensorboard_has_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("tensorboard")
    args = TrainingArguments(output_dir=str(tmp_path), logging_dir=str(tmp_path / "events"))
    tell(TensorBoardTracker(), args)
    scalars, texts = scalars_and_texts(tmp_path / "events")
    assert scalars == {"train/loss": [(1, 2.0)], "eval/loss": [(2, 1.5)]}
    assert texts["samples/1/text_summary"] == [b"> Who?\n\nI <b>am</b>", b"> Who?\n\na\nmodel"]
    assert not caplog.records


def test_wandb_has_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    library = Recorder("wandb")
    library.Table = lambda columns, data: (columns, data)  # type: ignore[attr-defined]
    library.run = types.SimpleNamespace(summary={})
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setattr(tracking.Tracker, "_current", {})
    tell(tracking.trackers()["wandb"](), TrainingArguments(output_dir=str(tmp_path)))
    tables = [call[1] for call in library.calls if call[0] == "log" and "samples" in call[1]]
    columns, rows = tables[1]["samples"]
    assert columns == ["step", "prompt", "reply"] and rows[0] == [4, "Who?", "a\nmodel"]
    assert [table["train/global_step"] for table in tables] == [2, 4]


class NoTexts(tracking.Tracker):
    """A tracker that takes numbers alone."""

    name = library = "numbers"

    def open(self, *given: Any) -> None:
        self.logged: list[Any] = []

    def log(self, logs: Any, step: int) -> None:
        self.logged.append((step, dict(logs)))

    def log_samples(self, samples: Any, step: int) -> None:
        raise OSError("no texts here")

    def close(self, *, failed: bool) -> None:
        self.logged.append("closed")


def test_a_tracker_that_refuses_texts_goes_on_with_numbers(caplog: pytest.LogCaptureFixture) -> None:
    tracker = NoTexts()
    tell(tracker, TrainingArguments(output_dir="o"))
    assert tracker.logged == [(1, {"loss": 2.0}), (2, {"eval_loss": 1.5}), "closed"]
    (record,) = caplog.records
    assert record.getMessage() == (
        "--report_to numbers: sample replies are not sent there any more, other values are: "
        "OSError: no texts here"
    )


TELL = """
from reporting import test_samples
from fastsft.arguments import TrainingArguments
from fastsft.trackers.tracker import make_trackers
args = TrainingArguments(output_dir="out", report_to="mlflow")
test_samples.tell(*make_trackers(args.report_to), args)
import mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs(["0"])
print(sorted(item.path for item in client.list_artifacts(run.info.run_id, "samples")))
"""


@needs("mlflow")
def test_mlflow_has_files(tmp_path: Path) -> None:
    output = run_script(TELL, tmp_path, MLFLOW_TRACKING_URI="file:runs")
    assert output.splitlines()[-1] == "['samples/step-2.txt', 'samples/step-4.txt']"


def asked(path: Path, content: str | bytes, **more: Any) -> list[tuple[str, list[str]]]:
    """Return the text and the roles of each prompt in a file with this content."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [
        (question.text, [str(m.get("role", m.get("from"))) for m in question.messages])
        for question in read_prompts(str(path), **more)
    ]


def test_files_of_prompts(tmp_path: Path) -> None:
    texts = "\ufeffOne?\r\n\n  Two\u2028three?  \n"
    assert asked(tmp_path / "a.txt", texts) == [("One?", ["user"]), ("Two\u2028three?", ["user"])]
    records = [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                      {"role": "assistant", "content": "b"}]},
        {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
                      {"role": "user", "content": "e"}]},
        {"prompt": "hello"},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "f"}]}]},
        {"conversations": [{"from": "human", "value": "g"}]},
    ]  # fmt: skip
    lines = "\n".join(map(json.dumps, records))
    assert asked(tmp_path / "a.jsonl", "\ufeff" + lines) == [
        ("a", ["system", "user"]), ("e", ["user", "assistant", "user"]), ("hello", ["user"]), ("f", ["user"]),
        ("g", ["human"]),
    ]  # fmt: skip
    alpaca = '[{"instruction": "Do", "input": "", "output": "x"}]'
    assert asked(tmp_path / "alpaca.json", alpaca) == [("Do", ["human"])]
    named = '[{"conversations": [{"from": "alice", "value": "q"}, {"from": "bob", "value": "r"}]}]'
    assert asked(tmp_path / "b.json", named, roles={"alice": "user"}) == [("q", ["alice"])]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.txt", None, "expected .*No such file"),
        ("none.json", None, "expected .*none.json is not"),
        ("empty.txt", b"\n \n", "expected prompts, got an empty file"),
        ("bad.json", b"{", "expected .*bad.json"),
        ("latin.txt", b"caf\xe9", "expected .*can't decode byte 0xe9"),
        (
            "a.json",
            b'[{"messages": [{"role": "system", "content": "s"}]}]',
            "prompt 1: .*message of the user",
        ),
        ("b.json", b'[{"prompt": "a"}, {"foo": 1}]', 'prompt 2: expected "prompt", "messages" or .*foo'),
        ("c.json", b"[1, 2]", "prompt 1: expected a record, got 1"),
        ("d.json", b'[{"conversations": "x"}]', 'prompt 1: expected "conversations" to be a list .*"x"'),
        (
            "e.json",
            b'[{"conversations": [{"from": "human"}]}]',
            'prompt 1: .*"from" and "value", got {"from"',
        ),
        ("f.json", b'[{"messages": [{"role": "user", "content": null}]}]', "prompt 1: .*got {.*null"),
        ("many.txt", b"a\n" * 65, "expected at most 64 prompts, got 65 prompts; a number such as"),
        ("large.txt", b"a" * (1 << 24) + b"b", "expected .* got: a file of 16,777,217 bytes, at most 64"),
    ],
)
def test_files_that_are_refused(name: str, content: bytes | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    args = TrainingArguments("o", sample_prompts=str(path), eval_strategy="epoch", use_cpu=True)
    with pytest.raises(ValueError, match=f"--sample_prompts {path}: {expected}"):
        check_sample_prompts(args, None)


@pytest.mark.parametrize("kind", ["pipe.jsonl", "pipe.txt", "-"])
def test_streams_are_refused_before_they_are_read(kind: str, tmp_path: Path) -> None:
    path = kind if kind == "-" else str(tmp_path / kind)
    if kind != "-":
        os.mkfifo(path)
    with pytest.raises(ValueError, match=rf"--sample_prompts {path}: .* can be read once"):
        read_prompts(path)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "w?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "9"},
    {"role": "assistant", "content": "9!"},
    {"role": "user", "content": "and?"},
]


def question(record: dict[str, Any], tmp_path: Path, **more: Any) -> Question:
    (tmp_path / "p.json").write_text(json.dumps([record]))
    return read_prompts(str(tmp_path / "p.json"), **more)[0]


def test_tools_and_calls_are_those_of_transformers(tmp_path: Path) -> None:
    model = write_published(tmp_path / "m", "qwen3")
    record = {"messages": [*TALK, {"role": "assistant", "content": "left out"}], "tools": TOOLS}
    found = question(record, tmp_path)
    theirs = [{**m, "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]}
              if "tool_calls" in m else m for m in TALK]  # fmt: skip
    wanted = AutoTokenizer.from_pretrained(model).apply_chat_template(
        theirs, tools=TOOLS, add_generation_prompt=True
    )
    prompts = Prompts(Tokenizer.from_pretrained(model))
    assert found.has_tools and prompts.ids_of_record(found.record, found.data_format) == wanted


def test_the_system_text_and_role_names_of_a_record_are_kept(tmp_path: Path) -> None:
    model = write_published(tmp_path / "m", "qwen3")
    theirs = AutoTokenizer.from_pretrained(model).apply_chat_template(TALK[:2], add_generation_prompt=True)
    settings = LabelSettings(mask_policy="spans", role_map={"alice": "user"})
    prompts = Prompts(Tokenizer.from_pretrained(model), settings=settings)
    record = {"conversations": [{"from": "alice", "value": "w?"}], "system": "Be kind."}
    found = question(record, tmp_path, roles=settings.role_map)
    assert prompts.ids_of_record(found.record, found.data_format) == theirs


@pytest.mark.parametrize("template", ["vicuna_v1.1", "chatml"])
def test_a_prompt_that_the_template_would_cut_is_refused(template: str, tmp_path: Path) -> None:
    prompts = Prompts(Tokenizer.from_pretrained(write_published(tmp_path / "m", "qwen3")), template)
    hi = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    for middle in ([{"role": "tool", "content": "5"}], [{"role": "user", "content": "so"}]):
        found = question({"messages": [*hi, *middle, {"role": "user", "content": "again"}]}, tmp_path)
        with pytest.raises(ValueError, match=r"no prompt for these messages .*(role tool|alternate)"):
            prompts.ids_of_record(found.record, found.data_format)


def test_flags_that_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    for value in ("0", "-2"):
        with pytest.raises(ValueError, match=f"expected at least 1 conversation, or a file, got {value}"):
            TrainingArguments("o", sample_prompts=value, eval_strategy="epoch")
    with pytest.raises(ValueError, match="--sample_prompts 3 asks for replies at evaluations, and"):
        TrainingArguments("o", sample_prompts="3")
    with pytest.raises(ValueError, match="--sample_max_new_tokens: expected at least 1, got 0"):
        TrainingArguments("o", sample_prompts="3", eval_strategy="epoch", sample_max_new_tokens=0)
    assert TrainingArguments("o", sample_prompts=3, eval_strategy="epoch").sample_prompts == "3"  # type: ignore[arg-type]
    TrainingArguments("o", sample_temperature=0.5)
    assert "--sample_temperature 0.5 has no effect: it is read with --sample_prompts" in caplog.text
