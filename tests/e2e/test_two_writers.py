"""A second run on a held output directory stops before it touches a file; a dead one is no obstacle.

docs/spec/reliability.md, row R14.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from warm_ranks import WarmRanks, spread

ASLEEP = ("place", "op:rms_norm", "sleep", -1, 20, 600.0)


def listing(folder: Path) -> list[tuple[str, int, int]]:
    found = [(path, path.stat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), state.st_size, state.st_mtime_ns) for path, state in found]


def check_trials(warm: WarmRanks, flags: dict[str, Any], output: Path, trials: int) -> None:
    holder = warm.start(flags, output, 1, ASLEEP)
    holder.wait_for("reached op:rms_norm")
    before = listing(output)
    for trial in range(trials):
        ranks = 1 + trial // 5 % 2
        second = warm.start(spread(flags, ranks), output, ranks)
        assert second.wait(60) == [1] * ranks, second.all_text()
        owner = f"in use by another run (host {socket.gethostname()}, process {holder.pids[0]}, since 20"
        assert owner in second.text(0, "err") and "Traceback" not in second.all_text()
        assert listing(output) == before
    holder.send(signal.SIGKILL)
    assert holder.wait() == [-signal.SIGKILL]
    assert (output / ".fastsft-lock").exists(), "what a dead run leaves"


def test_the_second_run_stops_and_a_dead_one_is_taken_over(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path
) -> None:
    check_trials(warm, flags, tmp_path, 5)
    # The lock is the kernel's, not the file: another host's name in a file that nobody holds says nothing.
    (tmp_path / ".fastsft-lock").write_text("host elsewhere, process 1, since 2020-01-01T00:00:00Z\n")
    warm.start({**flags, "max_steps": 4}, tmp_path).finish()
    assert not (tmp_path / ".fastsft-lock").exists()


def test_two_runs_started_together(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    """Whichever comes first trains; the other one stops."""
    runs = [warm.start({**flags, "max_steps": 6}, tmp_path) for _ in range(2)]
    statuses = sorted(run.wait(60)[0] for run in runs)
    assert statuses == [0, 1], "".join(run.all_text() for run in runs)


@pytest.mark.chaos
def test_fifty_second_runs(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    check_trials(warm, flags, tmp_path, 50)
