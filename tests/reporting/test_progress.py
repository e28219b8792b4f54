"""Lines, bars and events of a run, and the times behind them."""

import ast
import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios
from itertools import pairwise

import pytest

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.planning.gpus import gpu_named
from fastsft.reporting.console_text import console_line, duration_text, readable_line
from fastsft.reporting.progress import Progress, phases_left
from fastsft.reporting.progress_displays import bar_format
from fastsft.reporting.status import EVENTS_VARIABLE, Status, status_text
from fastsft.reporting.throughput import Pace, Work, flops_per_token
from fastsft.runtime import messages as notices

LOGS = {"loss": 1.23456789, "grad_norm": 0.123456789, "learning_rate": 1.9e-05, "epoch": 0.333333}
FULL = Status(
    step=42, max_steps=1000, epoch=1.26, loss=1.23456, grad_norm=0.5321, learning_rate=1.9e-05,
    tokens_per_second=12345.6, utilization=0.4123, peak_memory=3 << 30, seconds_left=4000.0,
)  # fmt: skip


class Terminal:
    """A pseudo terminal of some width; `text` is what was written, `lines` what a person sees."""

    def __init__(self, width):
        self.reader, writer = pty.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        os.set_blocking(self.reader, False)
        self.stream = os.fdopen(writer, "w")

    @property
    def text(self):
        self.stream.flush()
        parts = []
        while True:
            try:
                parts.append(os.read(self.reader, 65536))
            except (BlockingIOError, OSError):
                return b"".join(parts).decode()


def play(progress, args, log=True):
    state, control = TrainerState(max_steps=3), TrainerControl()
    progress.on_train_begin(args, state, control)
    for step in (1, 2, 3):
        state.global_step, state.epoch = step, step / 3
        logs = {**LOGS, "epoch": state.epoch}
        progress.on_step_end(args, state, control, step_tokens=100, step_logs=logs)
        if log:
            progress.on_log(args, state, control, logs=logs)
    with progress.phase("evaluating", "7 rows") as report:
        report(1, 2)
        report(2, 2)
    progress.on_train_end(args, state, control)


def test_line_of_a_log():
    assert console_line({**LOGS, "total_flos": 3.0}) == (
        "{'loss': 1.2346, 'grad_norm': 0.123456789, 'learning_rate': 1.9e-05, 'epoch': 0.33}"
    )


def test_line_of_a_log_for_people():
    logs = {**LOGS, "total_flos": 3.0}
    assert readable_line(logs, 7, 200) == (
        "step 7: loss 1.2346, grad_norm 0.1235, learning_rate 1.9e-05, epoch 0.33"
    )
    wrapped = readable_line({**logs, "eval_samples_per_second": 1049.197}, 7, 60).splitlines()
    assert len(wrapped) == 2 and max(map(len, wrapped)) < 60 and wrapped[1].startswith("    ")


def test_lines_without_a_terminal_can_be_scraped(capsys):
    args = TrainingArguments(output_dir="o")
    play(Progress(args, io.StringIO()), args)
    *logs, phase = capsys.readouterr().out.splitlines()
    assert [ast.literal_eval(line)["loss"] for line in logs] == [1.2346] * 3
    stamp = r"  # \d{4}-\d\d-\d\d \d\d:\d\d:\d\d step 3/3, [\d,]+ tokens/s, peak [\d,.]+ [MG]iB, 0 s left$"
    assert re.search(stamp, logs[2])
    assert re.fullmatch(r"# \S+ \S+ step 3/3, evaluating 7 rows", phase)


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_bar_never_wraps_and_keeps_what_matters(width, monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    args, terminal = TrainingArguments(output_dir="o"), Terminal(width)
    progress = Progress(args, terminal.stream)
    play(progress, args, log=False)
    drawn = [part for part in re.split(r"[\r\n]+", terminal.text) if part.strip()]
    assert drawn and "\x1b" not in "".join(drawn).replace("\x1b[A", "")
    assert max(len(line) for line in drawn) < width
    last = drawn[-1].strip()
    assert "3/3" in last and ("100%|" in last) == (width >= 34)
    assert any("evaluating" in line for line in drawn)
    assert ("loss 1.235" in last, "0 s left" in last) == (width >= 80, True)
    assert ("epoch 1.00" in last, "norm 0.123" in last) == (width >= 120, width >= 120)
    assert width == 120 or ("iB" in last) == (width == 200)


def test_what_is_told_stands_above_the_bar(monkeypatch, caplog):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(notices, "_said", set())
    args, terminal = TrainingArguments(output_dir="o"), Terminal(100)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal.stream)
    progress = Progress(args)
    progress.on_train_begin(args, TrainerState(max_steps=3), TrainerControl())
    notices.tell("saved checkpoint-1")
    drawn = [part.strip() for part in re.split(r"[\r\n]+", terminal.text) if part.strip()]
    at = drawn.index("saved checkpoint-1")
    assert "0/3" in drawn[at - 1] and "0/3" in drawn[at + 1]  # drawn again below it
    progress.on_train_end(args, TrainerState(max_steps=3), TrainerControl())


def test_the_time_of_a_run_ends_with_its_last_log(monkeypatch):
    clock = Clock()
    args, state = TrainingArguments(output_dir="o"), TrainerState(max_steps=1)
    progress = Progress(args, io.StringIO())
    progress.pace = Pace(clock)
    progress.on_train_begin(args, state, TrainerControl())
    clock.now += 5
    progress.on_log(args, state, TrainerControl(), logs={"train_runtime": 5.0})
    clock.now += 60  # pictures are drawn
    progress.on_train_end(args, state, TrainerControl())
    assert progress.pace.seconds == 5


@pytest.mark.parametrize(("no_color", "term", "coloured"), [("", "xterm", True), ("1", "xterm", False)])
def test_colour(monkeypatch, no_color, term, coloured):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    args, terminal = TrainingArguments(output_dir="o"), Terminal(100)
    play(Progress(args, terminal.stream), args, log=False)
    assert ("\x1b[32m" in terminal.text) == coloured


@pytest.mark.parametrize(("term", "disable_tqdm"), [("xterm", True), ("dumb", None)])
def test_terminals_without_a_bar(term, disable_tqdm, monkeypatch, capsys):
    monkeypatch.setenv("TERM", term)
    args, terminal = TrainingArguments(output_dir="o", disable_tqdm=disable_tqdm), Terminal(80)
    play(Progress(args, terminal.stream), args)
    assert terminal.text == "" and len(capsys.readouterr().out.splitlines()) == 4


def test_other_ranks_are_silent(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    args = TrainingArguments(output_dir="o")
    play(Progress(args, io.StringIO()), args)
    assert capsys.readouterr().out == ""


def test_events(monkeypatch, capsys):
    reader, writer = os.pipe()
    monkeypatch.setenv(EVENTS_VARIABLE, str(writer))
    monkeypatch.setenv("FASTSFT_CONSOLE", "none")
    args = TrainingArguments(output_dir="o")
    play(Progress(args, io.StringIO()), args)
    os.close(writer)
    with os.fdopen(reader) as stream:
        events = [json.loads(line) for line in stream]
    assert capsys.readouterr().out == ""
    assert events[0]["event"] == "begin" and events[0]["status"]["max_steps"] == 3
    assert events[-1] == {"event": "end"}
    logs = [event["entry"] for event in events if event["event"] == "log"]
    assert [entry["step"] for entry in logs] == [1, 2, 3] and logs[0]["loss"] == LOGS["loss"]
    phases = [event["status"]["phase"] for event in events if event["event"] == "step"]
    assert "evaluating 2/2" in phases


def test_a_parent_that_went_away_does_not_end_the_run(monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setenv(EVENTS_VARIABLE, str(writer))
    args = TrainingArguments(output_dir="o")
    play(Progress(args, io.StringIO()), args)
    assert len(capsys.readouterr().out.splitlines()) == 4
    with pytest.raises(OSError):
        os.fstat(writer)  # it is closed; a second close could be that of another thread's file


def test_status_at_every_width():
    whole = status_text(FULL, 200)
    assert whole == (
        "epoch 1.26, loss 1.235, norm 0.532, lr 1.9e-05, 12,346 tok/s, MFU 41.2%, 3.0 GiB, 1 h 06 min left"
    )
    shown = [status_text(FULL, width).split(", ") for width in range(len(whole), 0, -1)]
    for wider, narrower in pairwise(shown):
        assert set(narrower) <= set(wider)
    assert shown[-1] == ["1 h 06 min left"]
    assert status_text(Status(loss=float("nan")), 80) == "loss nan"


def test_format_of_a_phase():
    line = bar_format(Status(step=3, max_steps=9, phase="evaluating 1/2"), 80)
    assert line.startswith("evaluating 1/2 {percentage:3.0f}%|{bar}| 3/9")


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_pace_counts_steps_without_warm_up_and_phases():
    clock = Clock()
    pace = Pace(clock)
    assert pace.seconds_left(10, {}) is None and pace.tokens_per_second() == 0
    for step, seconds in enumerate([50, 20, 2, 2, 2, 2], start=1):
        clock.now += seconds
        pace.step_done(step, 10)
        if step == 1:
            assert pace.seconds_left(10, {}) == 9 * 50
        if step == 4:
            with pace.phase("saving"):
                clock.now += 30
    assert pace.seconds_per_step() == 2 and pace.tokens_per_second() == 5
    assert pace.seconds_left(10, {"saving": 2, "evaluating": 3}) == 4 * 2 + 2 * 30
    assert pace.seconds == 108 and pace.overall_tokens_per_second() == pytest.approx(60 / 108)


def test_phases_that_are_left():
    args = TrainingArguments(output_dir="o", eval_strategy="steps", eval_steps=4, save_strategy="epoch")
    state = TrainerState(global_step=9, max_steps=20, epoch=1.3, num_train_epochs=3, eval_steps=4)
    assert phases_left(args, state) == {"evaluating": 3, "saving": 2}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (1e6, "11 d 13 h"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA L4", 121), ("NVIDIA H200", 989), ("NVIDIA GH200 480GB", 989),
        ("NVIDIA GeForce RTX 4090", 165.2), ("Some GPU", None),
    ],
)  # fmt: skip
def test_peak_by_name(device, tera):
    gpu = gpu_named(device)
    assert (gpu and gpu.flops) == (tera and tera * 1e12)


def test_utilization_counts_as_the_benchmarks_do():
    import bench_step
    from fastsft import _C

    config = {
        "model_type": "llama", "vocab_size": 100, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    lengths = [5, 9, 100]
    shapes = _C.Engine(json.dumps(config)).parameter_shapes
    mine = flops_per_token(_C.conversation_cost(json.dumps(config)), 114, sum(n * n for n in lengths))
    assert mine * 114 == pytest.approx(bench_step.step_flops(config, shapes, lengths))
    assert Work(mine, 2 * mine * 1000).utilization(1000) == pytest.approx(0.5)
