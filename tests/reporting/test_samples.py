"""Sample replies in the log, on the loss page, in the notebook and at trackers; prompts that are refused."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.notebook.view import RunState, TrainingResult, run_html
from fastsft.reporting.loss_reports import write_loss_files
from fastsft.reporting.samples import sample_lines, samples_html
from fastsft.trackers import tracker as tracking
from fastsft.trackers.tensorboard import TensorBoardTracker
from fastsft.trainer.samples import check_sample_prompts, read_prompts
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
    assert "I &lt;b&gt;am&lt;/b&gt;" in page and "a<br>model" in page and "<td>2</td>" in page
    run = RunState(log_history=HISTORY)
    assert "a<br>model" in run_html(run)
    assert samples_html([{"loss": 1.0, "step": 1}]) == ""
    result = TrainingResult(tmp_path, {}, HISTORY, 4, 1)
    assert [sample["reply"] for sample in result.samples] == ["a\nmodel", "y\x1b[31m"]
    assert TrainingResult(tmp_path, {}, HISTORY[:1], 4, 1).samples == []
    with_data = [{"samples": [{"prompt": "p", "reply": "r", "expected": "e"}], "step": 1}]
    assert "<td>data</td><td>e</td>" in samples_html(with_data)


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


def test_files_of_prompts(tmp_path: Path) -> None:
    (lines := tmp_path / "lines.txt").write_text("One?\n\n  Two?  \n")
    assert [messages[-1]["content"] for messages in read_prompts(str(lines))] == ["One?", "Two?"]
    records = [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                      {"role": "assistant", "content": "b"}]},
        {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
                      {"role": "user", "content": "e"}]},
    ]  # fmt: skip
    (chats := tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert [[m["role"] for m in messages] for messages in read_prompts(str(chats))] == [
        ["system", "user"], ["user", "assistant", "user"],
    ]  # fmt: skip
    (alpaca := tmp_path / "alpaca.json").write_text('[{"instruction": "Do", "input": "", "output": "x"}]')
    assert read_prompts(str(alpaca)) == [[{"role": "user", "content": "Do"}]]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.txt", None, "No such file"),
        ("none.json", None, "none.json is not"),
        ("empty.txt", b"\n \n", "prompts, got an empty file"),
        ("bad.json", b"{", "bad.json"),
        ("latin.txt", b"caf\xe9", "can't decode byte 0xe9"),
        (
            "system.json",
            b'[{"messages": [{"role": "system", "content": "s"}]}]',
            "without a message of the user",
        ),
    ],
)
def test_files_that_are_refused(name: str, content: bytes | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    args = TrainingArguments("o", sample_prompts=str(path), eval_strategy="epoch", use_cpu=True)
    with pytest.raises(ValueError, match=f"--sample_prompts {path}: expected .*{expected}"):
        check_sample_prompts(args)


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
