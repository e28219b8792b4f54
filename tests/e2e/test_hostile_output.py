"""A run in output directories and next to files that somebody prepared: one line, nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from planted import state
from small_disks import small_disk, why_not
from warm_ranks import TRAINER, Run, WarmRanks

FLAGS: dict[str, Any] = {
    "model_name_or_path": "model_untied", "data_path": "data/first50.json", "max_steps": 4, "save_steps": 2,
    "per_device_train_batch_size": 2, "learning_rate": 1e-3, "model_max_length": 256, "logging_steps": 1,
    "data_cache": "none", "use_cpu": True, "plot_loss": False,
}  # fmt: skip


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "o"
    folder.mkdir()
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(TRAINER / "model_untied", tmp_path / "model"))


def failed(warm: WarmRanks, flags: dict[str, Any], output: Path) -> str:
    """What a run that leaves with status 1 says."""
    run = warm.start(flags, output)
    assert run.wait(120) == [1] and "Traceback" not in run.all_text()
    return run.text(name="err")


def is_whole(output: Path) -> bool:
    return (output / "fastsft_finished.json").is_file() and (output / "tokenizer.model").is_file()


def test_links_and_files_of_others_everywhere(warm: WarmRanks, tmp_path: Path, output: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "thesis").write_text("x")
    (output / "checkpoint-2").symlink_to(keep)
    (output / "checkpoint-4").mkdir()
    (output / "checkpoint-4" / "optimizer.pt").write_text("precious")
    for name in ("all_results.json", "trainer_state.json", "data_report.json", "config.json"):
        (output / name).symlink_to(keep / "thesis")
    before = state(keep)
    run = warm.start({**FLAGS, "no_resume": True}, output)
    run.finish()
    assert state(keep) == before and is_whole(output)
    (aside,) = output.glob("previous-*-checkpoint-4")
    assert (aside / "optimizer.pt").read_text() == "precious" and "Traceback" not in run.all_text()
    assert _C.verify_directory(str(output / "checkpoint-4")) == []


def test_the_lock_of_nobody(warm: WarmRanks, output: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (output / ".fastsft-lock").symlink_to(victim)
    assert "expected the lock file of a run" in failed(warm, FLAGS, output)
    assert victim.read_text() == "mine"


def test_a_report_is_not_written_over_a_device(warm: WarmRanks, output: Path) -> None:
    said = failed(warm, {**FLAGS, "report_bad": "/dev/null"}, output)
    assert "--report_bad: /dev/null: expected the name of a file" in said
    assert Path("/dev/null").is_char_device()


def test_the_source_in_the_output_directory(warm: WarmRanks, output: Path) -> None:
    warm.train(FLAGS, output)
    before = sorted(path.name for path in output.iterdir())
    flags = {**FLAGS, "model_name_or_path": output / "checkpoint-2", "no_resume": True}
    assert "copy or rename it first" in failed(warm, flags, output)
    assert sorted(path.name for path in output.iterdir()) == before


@pytest.fixture
def running(warm: WarmRanks, output: Path, model: Path) -> Iterator[Run]:
    """A run that is past its first checkpoint, stopped."""
    flags = {**FLAGS, "model_name_or_path": model, "max_steps": 40, "save_total_limit": 2}
    run = warm.start(flags, output)
    try:
        until = time.monotonic() + 120
        while not list(output.glob("checkpoint-*")) and time.monotonic() < until:
            time.sleep(0.02)
        run.send(signal.SIGSTOP)
        assert list(output.glob("checkpoint-*"))
        yield run
    finally:
        run.send(signal.SIGKILL)
        run.wait()


def go_on(run: Run) -> int | None:
    run.send(signal.SIGCONT)
    return run.wait(200)[0]


def test_the_tokenizer_is_saved_as_it_was_at_the_start(running: Run, output: Path, model: Path) -> None:
    tokenizer = (model / "tokenizer.model").read_bytes()
    for path in model.iterdir():
        if "tokenizer" in path.name or path.suffix == ".safetensors":
            path.unlink()
    assert go_on(running) == 0 and (output / "tokenizer.model").read_bytes() == tokenizer
    newest = max(output.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
    assert (newest / "tokenizer.model").read_bytes() == tokenizer


def test_a_second_run_after_rm_rf(running: Run, warm: WarmRanks, output: Path) -> None:
    """The first notices at its next save, and leaves the second's files alone."""
    shutil.rmtree(output)
    warm.train(FLAGS, output)
    before = state(output)
    lock = _C.RunLock(str(output))
    assert go_on(running) == 1
    lock.release()
    before.pop("."), (after := state(output)).pop(".")
    assert after == before and is_whole(output)


def test_a_cache_that_is_cut_while_it_is_used(warm: WarmRanks, tmp_path: Path, output: Path) -> None:
    """Whoever touches what is gone says which file it was, and leaves with status 1."""
    flags = {**FLAGS, "data_cache": tmp_path / "cache", "max_steps": 4000, "save_steps": 4000}
    run = warm.start(flags, output)
    try:
        until = time.monotonic() + 120
        while not (output / "data_report.json").exists() and time.monotonic() < until:
            time.sleep(0.02)
        (cache,) = (tmp_path / "cache").glob("*.tokens")
        os.truncate(cache, 0)
        assert run.wait(120) == [1]
    finally:
        run.send(signal.SIGKILL)


def test_a_disk_that_is_too_small_is_one_line(warm: WarmRanks, tmp_path: Path) -> None:
    reason = why_not("tmpfs", tmp_path / "probe")
    if reason:
        pytest.skip(reason)
    with small_disk("tmpfs", tmp_path, 1) as disk:
        said = failed(warm, FLAGS, disk / "o")
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "free" in line
