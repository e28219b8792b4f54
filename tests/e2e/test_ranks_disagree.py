"""Two ranks with one thing that differs: both name it, with ranks and values, and leave with status 1."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from warm_ranks import TRAINER, WarmRanks, spread

# What rank 1 is given beside the words of both, and the beginning of what both say.
FLAGS: dict[str, tuple[list[str], str]] = {
    "learning_rate": (["0.5"], "--learning_rate: rank 0 has 0.002, rank 1 has 0.5"),
    "seed": (["7"], "--seed: rank 0 has 42, rank 1 has 7"),
    "bf16": (["True"], "--bf16: rank 0 has False, rank 1 has True"),
    "gradient_accumulation_steps": (["2"], "--gradient_accumulation_steps: rank 0 has 4, rank 1 has 2"),
    "per_device_train_batch_size": (["2"], "--per_device_train_batch_size: rank 0 has 1, rank 1 has 2"),
    "weight_decay": (["0.1"], "--weight_decay: rank 0 has 0.0, rank 1 has 0.1"),
    "lr_scheduler_type": (["linear"], "--lr_scheduler_type: rank 0 has cosine, rank 1 has linear"),
    "max_grad_norm": (["0.5"], "--max_grad_norm: rank 0 has 1.0, rank 1 has 0.5"),
    "label_smoothing_factor": (["0.1"], "--label_smoothing_factor: rank 0 has 0.0, rank 1 has 0.1"),
    "neftune_noise_alpha": (["5"], "--neftune_noise_alpha: rank 0 has none, rank 1 has 5.0"),
    "optim_dtype": (["bfloat16"], "--optim_dtype: rank 0 has float32, rank 1 has bfloat16"),
    "micro_batch_tokens": (["512"], "--micro_batch_tokens: rank 0 has none, rank 1 has 512"),
    "train_sampling_strategy": (["sequential"], "--train_sampling_strategy: rank 0 has random, rank 1 has"),
    "adam_beta1": (["0.5"], "--adam_beta1: rank 0 has 0.9, rank 1 has 0.5"),
    "average_tokens_across_devices": (["False"], "--average_tokens_across_devices: rank 0 has True, rank 1"),
    "loss_norm": (["micro_batch"], "--loss_norm: rank 0 has"),
    "max_steps": (["4"], "--max_steps: rank 0 has 3, rank 1 has 4"),
    "save_steps": (["2"], "--save_steps: rank 0 has 3, rank 1 has 2"),
    "save_strategy": (["no"], "--save_strategy: rank 0 has steps, rank 1 has no"),
    "save_mode": (["stream"], "--save_mode: rank 0 has auto, rank 1 has stream"),
    "fsdp": (["full_shard auto_wrap"], "--fsdp: rank 0 has"),
    "recompute": (["block"], "--recompute: rank 0 has auto, rank 1 has block"),
    "async_save": (["False"], "--async_save: rank 0 has True, rank 1 has False"),
    "no_resume": (["True"], "--no_resume: rank 0 has False, rank 1 has True"),
    "eval_steps": (["7"], "--eval_steps: rank 0 has"),
    "eval_data_path": (["data/first48.json"], "--eval_data_path, files: rank 0 has none, rank 1 has 1"),
    "model_max_length": (["128"], "--model_max_length: rank 0 has 256, rank 1 has 128"),
    "replay_check": (["1"], "--replay_check: rank 0 has 0, rank 1 has 1"),
    "resume_from_checkpoint": (["True"], "--resume_from_checkpoint: rank 0 has none, rank 1 has True"),
    "data_cache": (["none"], "a token cache (--data_cache): rank 0 has True, rank 1 has False"),
    "max_dropped": (["0.5"], "--max_dropped: rank 0 has 0.05, rank 1 has 0.5"),
    "output_dir": (["elsewhere"], "--output_dir: rank 0 has /"),
    "ddp_timeout": (["60"], "--ddp_timeout: rank 0 has 1800, rank 1 has 60"),
    "check_data": (["True"], "--check_data: rank 0 has False, rank 1 has True"),
    "padding_side": (["left"], "--padding_side: rank 0 has right, rank 1 has left"),
}
OFTEN = (
    "learning_rate", "bf16", "max_steps", "save_strategy", "save_mode", "fsdp", "recompute", "no_resume",
    "eval_data_path", "replay_check", "data_cache",
)  # fmt: skip
BOTH = {"max_steps": 3, "plot_loss": False, "fsdp": ""}


def disagree(
    warm: WarmRanks, flags: dict[str, Any], output: Path, fault: tuple[Any, ...], expected: str
) -> None:
    given = {**spread(flags, 2), **BOTH, "data_cache": str(output / "cache")}
    began = time.monotonic()  # Before the ranks exist, so the time since their meeting is shorter.
    run = warm.start({name: value for name, value in given.items() if value != ""}, output / "out", 2, fault)
    statuses = run.wait(60)
    print(f"{' '.join(map(str, fault))}: both ranks had left after {time.monotonic() - began:.1f} s")
    assert statuses == [1, 1], run.all_text()[-4000:]
    for rank in (0, 1):
        said = run.text(rank, "err")
        assert f"rank {rank}: error: {expected}" in said, said[-2000:]
        assert "Traceback" not in said
    assert not list((output / "out").glob("checkpoint-*"))


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.chaos) for name in FLAGS]
)
def test_another_argument(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, name: str) -> None:
    words, expected = FLAGS[name]
    disagree(warm, flags, tmp_path, ("flag", 1, [f"--{name}", *words]), expected)


def other_data(folder: Path, *, rows: int = 48, changed: int | None = None) -> str:
    records = json.loads((TRAINER / "data" / "first48.json").read_text())[:rows]
    if changed is not None:
        records[changed]["conversations"][1]["value"] += " and another word"
    path = folder / "other.json"
    path.write_text(json.dumps(records))
    return str(path)


@pytest.mark.parametrize("cache", ["none", "cache"])
def test_other_data_of_the_same_length(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, cache: str
) -> None:
    folder = str(tmp_path / cache) if cache == "cache" else cache
    words = ["--data_path", other_data(tmp_path, changed=30)]
    expected = "--data_path, content of file 1: rank 0 has"
    disagree(warm, {**flags, "data_cache": folder}, tmp_path, ("flag", 1, words), expected)


def test_fewer_rows(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    words = ["--data_path", other_data(tmp_path, rows=40)]
    disagree(warm, flags, tmp_path, ("flag", 1, words), "--data_path, content of file 1: rank 0 has")


def test_rows_that_were_labelled_otherwise(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    """Where the files are equal and the rows are not: without a cache every rank labels for itself."""
    fault = ("drop_last_row", 1)
    given = {**flags, "data_cache": "none"}
    run = warm.start({**spread(given, 2), "max_steps": 3, "plot_loss": False}, tmp_path, 2, fault)
    assert run.wait(120) == [1, 1], run.all_text()[-4000:]
    assert "error: rows of the training data: rank 0 has 48, rank 1 has 47" in run.text(0, "err")


def test_the_same_data_and_model_in_another_place(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path
) -> None:
    model = tmp_path / "copy"
    shutil.copytree(TRAINER / flags["model_name_or_path"], model)
    data = tmp_path / "copy.json"
    shutil.copy(TRAINER / flags["data_path"], data)
    words = ["--model_name_or_path", str(model), "--data_path", str(data)]
    given = {**spread(flags, 2), "max_steps": 1, "plot_loss": False}
    warm.start(given, tmp_path / "out", 2, ("flag", 1, words)).finish(120)


@pytest.mark.parametrize("fsdp", ["full_shard", pytest.param("", marks=pytest.mark.chaos)])
def test_other_weights_of_the_same_shape(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, fsdp: str
) -> None:
    model = tmp_path / "other"
    shutil.copytree(TRAINER / flags["model_name_or_path"], model)
    first, *_ = sorted(model.glob("*.safetensors"))
    save_file({name: value + value.dtype.type(0.25) for name, value in load_file(first).items()}, first)
    words = ["--model_name_or_path", str(model)]
    expected = f"weights: {first.name}: rank 0 has"
    run_flags = {**spread(flags, 2), "fsdp": fsdp, "max_steps": 1, "plot_loss": False}
    given = {name: value for name, value in run_flags.items() if value != ""}
    run = warm.start(given, tmp_path / "out", 2, ("flag", 1, words))
    assert run.wait(120) == [1, 1], run.all_text()[-4000:]
    assert all(f"error: {expected}" in run.text(rank, "err") for rank in (0, 1)), run.all_text()[-2000:]


@pytest.mark.parametrize(
    ("target", "value", "expected"),
    [
        ("torch:__version__", "2.12.0", "version of torch: rank 0 has"),
        ("fastsft.ranks.comparison:_installed", "9.9", "version of transformers: rank 0 has"),
        ("fastsft:__version__", "9.0", "version of fastsft: rank 0 has"),
        (
            "fastsft.ranks.comparison:code_checksum",
            "called",
            "build of fastsft (checksum of its code): rank 0",
        ),
        ("fastsft.ranks.rendezvous:_FORM", 2, "rank 1 runs another version of fastsft"),
    ],
)
def test_another_program(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, target: str, value: Any, expected: str
) -> None:
    disagree(warm, flags, tmp_path, ("replace", 1, target, value), expected)


def test_another_number_of_ranks(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    expected = "ranks of the run (WORLD_SIZE): rank 0 has 2, rank 1 has 3"
    fault = ("environment", 1, {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"})
    disagree(warm, flags, tmp_path, fault, expected)


def test_a_variable_that_changes_results(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    expected = "variable NCCL_ALGO: rank 0 has none, rank 1 has Tree"
    disagree(warm, flags, tmp_path, ("environment", 1, {"NCCL_ALGO": "Tree"}), expected)
