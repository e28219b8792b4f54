"""Output that nobody takes, processes that were stopped, and launchers that are gone: the run is saved."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.command_line import TRAINER, command_and_environment, descendants
from fastsft import _C
from warm_ranks import WarmRanks, spread


@pytest.mark.variants("full")
@pytest.mark.parametrize("kind", ["closed", "full", "pipe"])
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_a_run_without_output_is_saved(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, kind: str, ranks: int
) -> None:
    given = {**spread(flags, ranks), "max_steps": 2, "save_steps": 1}
    run = warm.start(given, tmp_path, ranks, ("lose_output", kind))
    assert run.wait(120) == [0] * ranks
    assert (tmp_path / "fastsft_finished.json").is_file() and run.all_text() == ""


def test_the_command_with_closed_output(flags: dict[str, Any], tmp_path: Path) -> None:
    """Also descriptors that libraries would get: nothing that is printed may land in a file of the run."""
    command, env = command_and_environment({**flags, "max_steps": 1}, tmp_path, 1, "fastsft.train")
    words = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(words, cwd=TRAINER, env=env, timeout=300).returncode == 0
    assert (tmp_path / "fastsft_finished.json").is_file()


def test_time_in_which_a_process_was_stopped_counts_for_no_limit(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path
) -> None:
    given = {**flags, "phase_timeouts": "first_step=4,step=4,save=4,data=4,init=4", "max_steps": 4}
    place = ("place", "op:rms_norm", "freeze", 0, 20, 0.0)
    run = warm.start(given, tmp_path, 1, place)
    run.wait_for("reached op:rms_norm")
    time.sleep(8)
    assert run.left() == [0], run.all_text()
    run.send(signal.SIGCONT)
    assert "no progress" not in run.finish(60)


def begin_ranks(flags: dict[str, Any], output: Path) -> tuple[subprocess.Popen[bytes], Path]:
    command, env = command_and_environment(
        {**spread(flags, 2), "num_train_epochs": 500, "save_steps": 10_000}, output, 2, "fastsft.train"
    )
    log = output.with_suffix(".log")
    with open(log, "wb") as file:
        return subprocess.Popen(command, cwd=TRAINER, env=env, stdout=file, stderr=file), log


def wait_until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_ranks_save_and_leave_when_their_launcher_is_killed(flags: dict[str, Any], tmp_path: Path) -> None:
    launcher, log = begin_ranks(flags, tmp_path / "out")
    wait_until(lambda: " step 4/" in log.read_text())
    ranks = descendants(launcher.pid)[1:]
    launcher.kill()
    launcher.wait()
    wait_until(lambda: all(map(is_gone, ranks)), 60)
    text = log.read_text()
    # The other rank may leave with it before it has looked itself.
    assert f"the launcher, process {launcher.pid}, is gone: this rank leaves" in text, text[-3000:]
    assert "the same command resumes from it" in text and "Traceback" not in text
    (name,) = _C.list_checkpoints(str(tmp_path / "out"))
    assert _C.verify_directory(str(tmp_path / "out" / name)) == []


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0])
def test_ranks_leave_when_their_launcher_is_killed_as_they_start(
    flags: dict[str, Any], tmp_path: Path, seconds: float
) -> None:
    launcher, log = begin_ranks(flags, tmp_path / "out")
    wait_until(lambda: len(descendants(launcher.pid)) >= 3)
    time.sleep(seconds)
    ranks = descendants(launcher.pid)[1:]
    launcher.kill()
    launcher.wait()
    wait_until(lambda: all(map(is_gone, ranks)), 60)
    assert "gone" in log.read_text() and "Traceback" not in log.read_text()


@pytest.mark.thorough
def test_a_missing_rank_is_named(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    run = warm.start({**spread(flags, 2), "ddp_timeout": 17}, tmp_path, 2, ("stay_away", 1))
    assert run.wait(90)[0] == 3, run.all_text()
    text = run.text(0, "err")
    assert "rank 0: waiting for rank 1 of 2 at 127.0.0.1:" in text and "--ddp_timeout 17" in text
    assert "error: rank 0 of 2, step 0" in text and "in vain for 17 seconds" in text


def test_a_missing_first_rank_is_named(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    run = warm.start({**spread(flags, 2), "ddp_timeout": 17}, tmp_path, 2, ("stay_away", 0))
    assert run.wait(90)[1] == 3, run.all_text()
    text = run.text(1, "err")
    assert "rank 1: waiting for the store of rank 0 or of its launcher at 127.0.0.1:" in text
    assert "error: rank 1 of 2, step 0" in text
