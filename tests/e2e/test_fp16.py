"""Runs in float16: recorded with transformers' Trainer and torch.amp.GradScaler; ranks, resumes, adapters."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.command_line import TRAINER, log_history, tensors
from warm_ranks import OF_GENERIC_RUNS, WarmRanks, losses

GOLDEN = TRAINER.parent / "fp16"
RUNS = {path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}
LOSS, NORM = 1e-3, 2e-3  # autocast computes norms and softmax in float32


def flags_of(name: str, **more: Any) -> dict[str, Any]:
    recorded = RUNS[name]
    data = f"{recorded['flags']['data_path']}"
    inside = GOLDEN / "data" / data
    return {
        **recorded["flags"],
        "data_path": inside if inside.exists() else f"data/{data}",
        "initial_loss_scale": recorded["scale"],
        "loss_scale_window": recorded["growth_interval"],
        **more,
    }


def scale_after(output: Path, step: int) -> float:
    state = json.loads((output / f"checkpoint-{step}" / "fastsft_state.json").read_text())
    return float(state["loss_scale"]["scale"])


def assert_recorded(output: Path, steps: list[dict[str, Any]]) -> None:
    entries = [entry for entry in log_history(output) if "loss" in entry][: len(steps)]
    assert [entry["step"] for entry in entries] == [step["step"] for step in steps]
    for entry, step in zip(entries, steps, strict=True):
        assert entry["loss"] == pytest.approx(step["loss"], abs=LOSS)
        assert entry["learning_rate"] == pytest.approx(step["learning_rate"], abs=1e-12, rel=0)
        assert entry["epoch"] == step["epoch"]
        assert math.isfinite(entry["grad_norm"]) == math.isfinite(step["grad_norm"])
        if math.isfinite(step["grad_norm"]):
            assert entry["grad_norm"] == pytest.approx(step["grad_norm"], rel=NORM)


@pytest.mark.variants("first_scale-native", "short_answers-native", "overflows-native")
@pytest.mark.parametrize("engine", ["native", "generic"])
@pytest.mark.parametrize("name", RUNS)
def test_recorded_run(warm: WarmRanks, name: str, engine: str, tmp_path: Path) -> None:
    """Losses, skipped steps, learning rates, and the scale after every step."""
    out, recorded = tmp_path / "out", RUNS[name]
    if engine == "generic":
        warm.imports(*OF_GENERIC_RUNS)
    flags = flags_of(name, engine=engine, save_strategy="steps", save_steps=1, save_total_limit=20)
    printed = warm.train(flags, out)
    steps = recorded["steps"]
    assert_recorded(out, steps)
    assert [scale_after(out, step["step"]) for step in steps] == [step["scale"] for step in steps]
    skipped = sum(not math.isfinite(step["grad_norm"]) for step in steps)
    assert printed.count("gradients overflowed float16, no weight changed") == skipped
    saved = tensors(out)
    for tensor, value in saved.items():
        assert value.dtype == torch.float32
        assert value.double().norm().item() == pytest.approx(recorded["final"][tensor]["l2"], rel=1e-4), (
            tensor
        )


@pytest.mark.variants("overflows-shard", "first_scale-full")
@pytest.mark.parametrize("sharding", ["full_shard auto_wrap", "shard_grad_op auto_wrap", ""])
@pytest.mark.parametrize("name", ["first_scale", "overflows"])
def test_two_ranks_are_the_recorded_one(warm: WarmRanks, name: str, sharding: str, tmp_path: Path) -> None:
    """But for the last step, whose two conversations are not enough for the batches of two ranks."""
    more = {"fsdp": sharding} if sharding else {}
    warm.train(flags_of(name, per_device_train_batch_size=2, **more), tmp_path / "out", 2)
    assert_recorded(tmp_path / "out", RUNS[name]["steps"][:-1])


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_has_the_same_bits(warm: WarmRanks, ranks: int, tmp_path: Path) -> None:
    """Between a scale that fell and its growth; skipped steps do not advance the learning rate there, too."""
    sharding = {"fsdp": "full_shard auto_wrap"} if ranks == 2 else {}
    flags = flags_of("short_answers", save_strategy="steps", save_steps=3, **sharding)
    out = tmp_path / "out"
    warm.train(flags, out, ranks)
    whole, curve = tensors(out), losses(out)
    kept = sorted(out.glob("checkpoint-*"))[1] if ranks == 1 else out / "checkpoint-3"
    for path in out.glob("checkpoint-*"):
        if path != kept:
            shutil.rmtree(path)
    (out / "model.safetensors").unlink()
    assert f"step {kept.name.rpartition('-')[2]}" in warm.train(flags, out, ranks)
    assert losses(out) == curve
    assert all(torch.equal(value, tensors(out)[name]) for name, value in whole.items())


@pytest.mark.variants("q_lora")
@pytest.mark.parametrize("more", [{}, {"q_lora": True}], ids=["lora", "q_lora"])
def test_adapters_learn_as_in_float32(warm: WarmRanks, more: dict[str, Any], tmp_path: Path) -> None:
    flags = {**flags_of("first_scale", lora=True, seed=3), **more}
    warm.train(flags, tmp_path / "half")
    warm.train({**flags, "fp16": False}, tmp_path / "whole")
    half, whole = losses(tmp_path / "half"), losses(tmp_path / "whole")
    assert half.keys() == whole.keys() and half != whole
    assert all(half[step] == pytest.approx(loss, abs=LOSS) for step, loss in whole.items())


def test_a_loss_that_float16_cannot_hold_ends_the_run(warm: WarmRanks, tmp_path: Path) -> None:
    """No scale helps there; the message names the format that does."""
    flags = flags_of("first_scale", learning_rate=1e4, max_grad_norm=0, warmup_ratio=0)
    run = warm.start({**flags, "plot_loss": False}, tmp_path / "out")
    assert run.wait(60) == [4]
    said = " ".join(run.text(name="err").split())
    assert "step 2: loss nan" in said and "use --bf16 True, as float16 holds no number above 65,504" in said


@pytest.mark.parametrize(
    "more, message",
    [
        ({"bf16": True}, "At most one of fp16 and bf16 can be True, but not both"),
        ({"master_dtype": "split"}, "--master_dtype split needs --bf16 True"),
        ({"initial_loss_scale": 0}, "expected an --initial_loss_scale above 0"),
        ({"loss_scale_window": 0}, "--loss_scale_window of at least 1"),
    ],
)
def test_refused(warm: WarmRanks, more: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = warm.start(flags_of("first_scale", **more), tmp_path / "out")
    assert run.wait(60) != [0]
    assert message in run.text(name="err").replace("\n", " ")
