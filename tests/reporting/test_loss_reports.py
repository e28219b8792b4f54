"""Curves of a run: from log_history to loss.html and loss.png."""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
import types
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.reporting import loss_reports
from fastsft.reporting.chart import (
    LEFT,
    NARROW,
    RIGHT,
    WIDTH,
    Curve,
    Line,
    line_chart,
    round_ticks,
    tick_text,
)
from fastsft.reporting.end_page import talk_command
from fastsft.reporting.loss_history import LossHistory, drawing, panels
from fastsft.reporting.loss_reports import LossReports, loss_page
from fastsft.reporting.status import stop_reason
from fastsft.runtime.output_files import RECORD_NAME

STEPS_PER_EPOCH = 10


def log_history(steps=30):
    """As a trainer leaves it."""
    entries = []
    for step in range(1, steps + 1):
        epoch = step / STEPS_PER_EPOCH
        entries.append(
            {
                "loss": 3 / step,
                "grad_norm": 1.0 + step % 3,
                "learning_rate": 1e-5 * step,
                "epoch": epoch,
                "step": step,
            }
        )
        if step % STEPS_PER_EPOCH == 0:
            entries.append({"eval_loss": 2 / step, "eval_runtime": 1.0, "epoch": epoch, "step": step})
    entries.append({"train_runtime": 9.0, "train_loss": 0.5, "epoch": steps / STEPS_PER_EPOCH, "step": steps})
    return entries


def svgs(text):
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.S)]


def test_curves_of_a_history():
    history = LossHistory.of(log_history())
    assert history.train.steps == tuple(range(1, 31)) and history.train.values[1] == 1.5
    assert history.evaluations == {"eval": Curve((10, 20, 30), (0.2, 0.1, 2 / 30))}
    assert history.epochs == ((1, 10), (2, 20), (3, 30))
    assert history.learning_rate.values[-1] == pytest.approx(3e-4) and history.last_step() == 30
    assert history.evaluations["eval"].best() == (30, 2 / 30)


def test_what_is_not_finite_leaves_a_gap_and_several_evaluations_are_told_apart():
    history = LossHistory.of(
        [
            {"loss": 2.0, "step": 1}, {"loss": math.nan, "step": 2}, {"loss": 1.0, "step": 3},
            {"eval_loss": math.inf, "step": 3}, {"eval_code_loss": 4.0, "step": 3}, {"note": "no step"},
        ]
    )  # fmt: skip
    assert history.train == Curve((1, 3), (2.0, 1.0))
    assert history.evaluations == {"eval": Curve(), "eval_code": Curve((3,), (4.0,))}
    assert not history.is_empty and LossHistory.of([]).is_empty and LossHistory.of([]).last_step() == 0
    assert drawing(LossHistory.of([])) == ""


def test_smoothing_keeps_a_line_and_does_not_lag():
    flat = Curve(tuple(range(100)), (3.0,) * 100).smoothed()
    assert flat.values == pytest.approx([3.0] * 100)
    slope = Curve(tuple(range(200)), tuple(float(n) for n in range(200))).smoothed()
    assert slope.values[100] == pytest.approx(100, abs=0.1)
    random = np.random.default_rng(0)
    noisy = Curve(tuple(range(500)), tuple(random.normal(size=500).tolist()))
    assert np.std(noisy.smoothed().values) < 0.5 * np.std(noisy.values)


def test_thinning_keeps_every_spike():
    values = [1.0] * 50_000
    values[12_345], values[40_000] = 9.0, -9.0
    thin = Curve(tuple(range(50_000)), tuple(values)).thinned(1000)
    assert len(thin) <= 1100 and list(thin.steps) == sorted(set(thin.steps))
    assert (12_345, 9.0) in zip(thin.steps, thin.values, strict=True)
    assert (40_000, -9.0) in zip(thin.steps, thin.values, strict=True)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.3, 7.2), (1e-7, 2e-5), (-5, 1e6), (2.0, 2.0), (99, 101)]
)
def test_ticks_are_round_and_inside(low, high):
    ticks = round_ticks(low, high, most=6)
    assert 1 <= len(ticks) <= 6
    assert all(low - 1e-9 <= tick <= high + 1e-9 * max(abs(high), 1) for tick in ticks)
    texts = [tick_text(tick, ticks) for tick in ticks]
    assert len(set(texts)) == len(ticks)
    assert [float(text.replace(",", "")) for text in texts] == pytest.approx(ticks, rel=0.01, abs=1e-12)


def test_drawing_is_well_formed_and_stays_inside_its_frame():
    first, rate, norm = svgs(drawing(LossHistory.of(log_history(60))))
    for svg in (first, rate, norm):
        height = float(svg.attrib["viewBox"].split()[3])
        for line in svg.iter("polyline"):
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert LEFT <= x <= WIDTH - RIGHT + 0.1 and 0 <= y <= height
    texts = [text.text for text in first.iter("text")]
    assert {"loss", "train", "train, smoothed", "eval", "epoch 1", "epoch 5"} <= set(texts)
    assert len(list(first.iter("polyline"))) == 3 and len(list(first.iter("circle"))) == 6


def test_few_points_are_not_smoothed_and_one_point_is_a_dot():
    (few, *_) = panels(LossHistory.of(log_history(40)))
    assert [line.name for line in few.lines] == ["train", "eval"]
    (svg,) = svgs(drawing(LossHistory.of([{"loss": 1.0, "step": 1}])))
    assert len(list(svg.iter("circle"))) == 1


def test_page_is_self_contained_and_its_data_is_complete():
    page = loss_page(LossHistory.of(log_history()), "a <b> \x1b[2J & c", {"run": "finished"}, 30)
    assert not re.search(r"https?://|@import|src=", page)
    assert "<b>" not in page.split("<section")[0] and "\x1b" not in page and "a &lt;b&gt;" in page
    data = json.loads(re.search(r'id="points">(.*?)</script>', page)[1])
    assert list(data) == ["loss", "smoothed", "eval loss", "learning rate", "gradient norm"]
    assert data["loss"][0] == list(range(1, 31)) and data["eval loss"] == [
        [10, 20, 30],
        [0.2, 0.1, 0.0666667],
    ]
    assert "prefers-color-scheme: dark" in page


@pytest.fixture
def run(tmp_path):
    args = TrainingArguments(output_dir=str(tmp_path / "out"))
    state = TrainerState(global_step=30, max_steps=100, epoch=3.0, log_history=log_history())
    return LossReports("title"), args, state, TrainerControl(), tmp_path / "out"


def test_files_at_a_save_at_the_end_and_when_a_run_stops(run, monkeypatch):
    pytest.importorskip("matplotlib")
    reports, args, state, control, out = run
    reports.on_train_begin(args, state, control)
    reports.on_save(args, state, control)
    assert {path.name for path in out.iterdir()} == {RECORD_NAME, "loss.html", "loss.png"}
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG") and "running" in (
        out / "loss.html"
    ).read_text()
    (out / "loss.html").unlink()
    reports.on_save(args, state, control)  # right after the last one: nobody looks
    assert not (out / "loss.html").exists()
    reports.on_train_stopped(args, state, control, reason="SIGTERM")
    page = (out / "loss.html").read_text()
    assert "stopped: SIGTERM" in page and "fastsft chat" not in page
    state.global_step = 100
    reports.on_train_end(args, state, control)
    page = (out / "loss.html").read_text()
    assert "finished" in page and f"<code>fastsft chat {out}</code>" in page


def test_nothing_is_written_by_other_ranks_or_without_logs_or_when_not_wanted(run):
    reports, args, state, control, out = run
    for changed in ({"is_world_process_zero": False}, {"log_history": []}):
        reports.on_train_end(args, types.SimpleNamespace(**{**vars(state), **changed}), control)
    args.plot_loss = False
    reports.on_train_end(args, state, control)
    assert not out.exists()


def test_without_matplotlib_the_page_alone_and_not_a_word_more(run, monkeypatch, caplog):
    reports, args, state, control, out = run
    monkeypatch.setattr(loss_reports, "has_matplotlib", lambda: False)
    monkeypatch.setattr("fastsft.runtime.messages._said", set())
    reports.on_train_end(args, state, control)
    reports.on_train_end(args, state, control)
    assert {path.name for path in out.iterdir()} == {RECORD_NAME, "loss.html"}
    assert not caplog.records  # the start page has said it


def test_a_broken_matplotlib_costs_the_picture_and_one_line(run, monkeypatch, caplog):
    pytest.importorskip("matplotlib")

    def broken(*_):
        raise AttributeError("numpy has no attribute 'iterable'\nmore")

    reports, args, state, control, out = run
    monkeypatch.setattr(loss_reports, "loss_picture", broken)
    monkeypatch.setattr("fastsft.runtime.messages._said", set())
    reports.on_save(args, state, control)
    reports.on_train_end(args, state, control)
    assert {path.name for path in out.iterdir()} == {RECORD_NAME, "loss.html"}
    (line,) = caplog.messages
    assert line == "loss.png is left out: matplotlib: AttributeError: numpy has no attribute 'iterable'"


def test_a_disk_that_takes_nothing_costs_one_line(run, monkeypatch, caplog):
    reports, args, state, control, out = run
    out.parent.joinpath("out").write_text("a file where the directory should be")
    monkeypatch.setattr("fastsft.runtime.messages._said", set())
    reports.on_train_end(args, state, control)
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(128 + signal.SIGTERM), "SIGTERM"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (RuntimeError("step 7: loss nan\nmore"), "RuntimeError: step 7: loss nan"),
        (SystemExit(1), "SystemExit: 1"),
    ],
)
def test_reasons(error, reason):
    assert stop_reason(error) == reason


def test_axes_have_names_and_a_narrow_screen_has_drawings_of_its_own():
    page = loss_page(LossHistory.of(log_history(60)), "t", {"run": "finished"}, 60)
    wide, narrow = page.split('<div class="narrow">')
    sizes = [{float(svg.attrib["viewBox"].split()[2]) for svg in svgs(part)} for part in (wide, narrow)]
    assert sizes == [{WIDTH}, {NARROW}] and "(max-width: 560px)" in page
    for svg in svgs(page):
        assert "step" in [text.text for text in svg.iter("text")]
        right = float(svg.attrib["viewBox"].split()[2]) - RIGHT
        assert float(svg.attrib["data-right"]) == right
        for line in svg.iter("polyline"):
            xs = [float(point.split(",")[0]) for point in line.attrib["points"].split()]
            assert min(xs) >= LEFT and max(xs) <= right + 0.1


def test_names_of_epochs_do_not_touch():
    epochs = [(epoch, 25 * epoch) for epoch in range(1, 12)]
    for width, most in ((WIDTH, 6), (NARROW, 3)):
        line = Line("train", LossHistory.of([{"loss": 1.0, "step": 300}]).train, "#000")
        (svg,) = svgs(line_chart("loss", [line], last_step=300, epochs=epochs, height=296, width=width))
        names = [text for text in svg.iter("text") if (text.text or "").startswith("epoch")]
        places = [float(text.attrib["x"]) for text in names]
        assert 2 <= len(places) <= most
        assert all(after - before >= 60 for before, after in pairwise(places))


def test_the_page_names_model_learning_rate_and_batch(run):
    _, args, state, control, out = run
    LossReports("title", "models/qwen").on_train_end(args, state, control)
    page = (out / "loss.html").read_text()
    for name, value in [("model", "qwen"), ("learning rate", "5e-05, linear"), ("batch", "8 x 1 x 1")]:
        assert f"<span>{name}</span><b>{value}</b>" in page


def test_the_chat_command_has_the_system_text_of_training(tmp_path: Path) -> None:
    assert talk_command(tmp_path) == f"fastsft chat {tmp_path}"
    report = {"train": {"default_system": "Be kind.\nIt's late."}}
    (tmp_path / "data_report.json").write_text(json.dumps(report))
    assert shlex.split(talk_command(tmp_path))[3:] == ["--system", "Be kind.\nIt's late."]
