"""The command in output directories and next to files that somebody prepared: one line, nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.command_line import TRAINER, begin, kill_all, start
from fastsft import _C
from planted import state
from small_disks import small_disk, why_not

FLAGS: dict[str, Any] = {
    "model_name_or_path": "model_untied", "data_path": "data/first50.json", "max_steps": 4, "save_steps": 2,
    "per_device_train_batch_size": 2, "learning_rate": 1e-3, "model_max_length": 256, "logging_steps": 1,
    "data_cache": "none", "use_cpu": True,
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


def is_whole(output: Path) -> bool:
    return (output / "fastsft_finished.json").is_file() and (output / "tokenizer.model").is_file()


def test_links_and_files_of_others_everywhere(tmp_path: Path, output: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "thesis").write_text("x")
    (output / "checkpoint-2").symlink_to(keep)
    (output / "checkpoint-4").mkdir()
    (output / "checkpoint-4" / "optimizer.pt").write_text("precious")
    for name in ("all_results.json", "trainer_state.json", "data_report.json", "config.json"):
        (output / name).symlink_to(keep / "thesis")
    before = state(keep)
    done = start({**FLAGS, "no_resume": True}, output)
    assert state(keep) == before and is_whole(output)
    (aside,) = output.glob("previous-*-checkpoint-4")
    assert (aside / "optimizer.pt").read_text() == "precious" and "Traceback" not in done.stderr
    assert _C.verify_directory(str(output / "checkpoint-4")) == []


def test_the_lock_of_nobody(output: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (output / ".fastsft-lock").symlink_to(victim)
    done = start(FLAGS, output, check=False)
    assert done.returncode == 1 and victim.read_text() == "mine"
    assert "expected the lock file of a run" in done.stderr and "Traceback" not in done.stderr


def test_a_report_is_not_written_over_a_device(output: Path) -> None:
    done = start({**FLAGS, "report_bad": "/dev/null"}, output, check=False)
    assert done.returncode == 1 and "--report_bad: /dev/null: expected the name of a file" in done.stderr
    assert Path("/dev/null").is_char_device()


def test_the_source_in_the_output_directory(output: Path) -> None:
    start(FLAGS, output)
    before = sorted(path.name for path in output.iterdir())
    flags = {**FLAGS, "model_name_or_path": output / "checkpoint-2", "no_resume": True}
    done = start(flags, output, check=False)
    assert done.returncode == 1 and "copy or rename it first" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in output.iterdir()) == before


@pytest.fixture
def running(output: Path, model: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that is past its first checkpoint, stopped."""
    flags = {**FLAGS, "model_name_or_path": model, "max_steps": 40, "save_total_limit": 2}
    process = begin(flags, output)
    try:
        until = time.monotonic() + 120
        while not list(output.glob("checkpoint-*")) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        assert list(output.glob("checkpoint-*"))
        yield process
    finally:
        if process.poll() is None:
            kill_all(process.pid)
        process.wait()


def go_on(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGCONT)
    text, _ = process.communicate(timeout=200)
    return process.returncode, text


def test_the_tokenizer_is_saved_as_it_was_at_the_start(
    running: subprocess.Popen[str], output: Path, model: Path
) -> None:
    tokenizer = (model / "tokenizer.model").read_bytes()
    for path in model.iterdir():
        if "tokenizer" in path.name or path.suffix == ".safetensors":
            path.unlink()
    status, _ = go_on(running)
    assert status == 0 and (output / "tokenizer.model").read_bytes() == tokenizer
    newest = max(output.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
    assert (newest / "tokenizer.model").read_bytes() == tokenizer


def test_a_second_run_after_rm_rf(running: subprocess.Popen[str], output: Path) -> None:
    """The first notices at its next save, and leaves the second's files alone."""
    shutil.rmtree(output)
    start(FLAGS, output)
    before = state(output)
    lock = _C.RunLock(str(output))
    status, _ = go_on(running)
    assert status == 1
    lock.release()
    before.pop("."), (after := state(output)).pop(".")
    assert after == before and is_whole(output)


def test_a_cache_that_is_cut_while_it_is_used(tmp_path: Path, output: Path) -> None:
    """Whoever touches what is gone says which file it was, and leaves with status 1."""
    flags = {**FLAGS, "data_cache": tmp_path / "cache", "max_steps": 4000, "save_steps": 4000}
    process = begin(flags, output)
    try:
        until = time.monotonic() + 120
        while not (output / "data_report.json").exists() and time.monotonic() < until:
            time.sleep(0.02)
        (cache,) = (tmp_path / "cache").glob("*.tokens")
        os.truncate(cache, 0)
        assert process.wait(120) == 1
    finally:
        if process.poll() is None:
            kill_all(process.pid)


def test_a_disk_that_is_too_small_is_one_line(tmp_path: Path) -> None:
    reason = why_not("tmpfs", tmp_path / "probe")
    if reason:
        pytest.skip(reason)
    with small_disk("tmpfs", tmp_path, 1) as disk:
        done = start(FLAGS, disk / "o", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "free" in line
