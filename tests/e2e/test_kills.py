"""SIGKILL at any instant, and while it resumes; the end is that of the whole run, bit by bit.

docs/spec/reliability.md, rows R3, R4 and R13.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from warm_ranks import Run, WarmRanks, losses, spread, weights_digest

# Ranks, and with which global batch: 8 conversations on 1, 2 and 4 ranks, 9 on 3.
SIZES = {1: {}, 2: {}, 3: {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}, 4: {}}


# What the run says last before the kill, and the longest wait after it: a third of the kills meet a save.
MOMENTS = [("resumed from", 0.2), ("{'loss'", 0.4), ("saving checkpoint-", 0.05)]


class Whole:
    """The uninterrupted run of each number of ranks."""

    def __init__(self, warm: WarmRanks, folder: Path, flags: dict[str, Any]) -> None:
        self._warm, self._folder, self._flags = warm, folder, flags
        self._ends: dict[int, tuple[str, dict[int, float]]] = {}

    def flags(self, ranks: int) -> dict[str, Any]:
        return spread({**self._flags, **SIZES[ranks]}, ranks)

    def end(self, ranks: int) -> tuple[str, dict[int, float]]:
        if ranks not in self._ends:
            output = self._folder / str(ranks)
            self._warm.start(self.flags(ranks), output, ranks).finish()
            self._ends[ranks] = weights_digest(output), losses(output)
        return self._ends[ranks]


@pytest.fixture(scope="module")
def whole(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(warm, tmp_path_factory.mktemp("whole"), flags)


def kill_one_or_all(run: Run, chance: random.Random) -> bool:
    """False where the run has ended first."""
    ranks = list(range(len(run.pids)))
    victims = ranks if chance.random() < 0.5 else [chance.choice(ranks)]
    run.send(signal.SIGKILL, *victims)
    statuses = run.wait(60)
    assert None not in statuses, f"hung after SIGKILL to {victims}, {statuses}:\n{run.all_text()}"
    return -signal.SIGKILL in statuses


def trial(warm: WarmRanks, whole: Whole, folder: Path, ranks: int, seed: int, kills: int = 1) -> str:
    """Kill `kills` times, run to the end; empty, or what differs from the whole run."""
    chance = random.Random(seed)
    flags = whole.flags(ranks)
    for attempt in range(8):
        output = folder / str(attempt)
        if all(_killed(warm, flags, output, ranks, chance, 0.5**attempt) for _ in range(kills)):
            break
    else:
        return f"seed {seed}, {ranks} ranks: no kill met the run"
    run = warm.start(flags, output, ranks)
    if run.wait(120) != [0] * ranks:
        return f"the last run ended with {run.statuses}: {run.all_text()[-3000:]}"
    assert "of the next step was" not in run.all_text()  # the rate goes on as it was
    expected = whole.end(ranks)
    found = weights_digest(output), losses(output)
    return "" if found == expected else f"seed {seed}, {ranks} ranks: {found} instead of {expected}"


def _killed(
    warm: WarmRanks, flags: dict[str, Any], output: Path, ranks: int, chance: random.Random, pace: float
) -> bool:
    """Start, wait for a moment, kill; False where the run has ended first. pace: of the waits."""
    run = warm.start(flags, output, ranks)
    words, longest = chance.choice(MOMENTS)
    if words == "resumed from" and not (output.is_dir() and _C.list_checkpoints(str(output))):
        words = "steps "  # of the start page
    _wait_or_end(run, words)
    time.sleep(chance.random() * longest * pace)
    return kill_one_or_all(run, chance)


def _wait_or_end(run: Run, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in run.text() and run.left() and time.monotonic() < deadline:
        time.sleep(0.002)


@pytest.mark.variants("2-2")
@pytest.mark.parametrize(("ranks", "seed"), [(1, 1), (2, 2), (3, 3)])
def test_a_killed_run_ends_as_the_whole_one(
    warm: WarmRanks, whole: Whole, tmp_path: Path, ranks: int, seed: int
) -> None:
    assert trial(warm, whole, tmp_path, ranks, seed) == ""


def test_a_kill_while_resuming_from_a_kill(warm: WarmRanks, whole: Whole, tmp_path: Path) -> None:
    assert trial(warm, whole, tmp_path, 2, 5, kills=2) == ""


@pytest.mark.chaos
@pytest.mark.parametrize("block", range(30))
def test_three_hundred_kills(warm: WarmRanks, whole: Whole, tmp_path: Path, block: int) -> None:
    """Ten a block, 1 to 4 ranks; every fifth is killed twice."""
    wrong = [
        trial(warm, whole, tmp_path / str(seed), 1 + seed % 4, 1000 + seed, kills=1 + (seed % 5 == 0))
        for seed in range(10 * block, 10 * block + 10)
    ]
    assert [text for text in wrong if text] == []


@pytest.mark.chaos
def test_thirty_requeues(warm: WarmRanks, whole: Whole, tmp_path: Path) -> None:
    """SIGTERM again and again, as a preempted job gets it; then to the end."""
    chance = random.Random(13)
    flags = {**whole.flags(2), "num_train_epochs": 10, "save_steps": 1000}
    expected, output = tmp_path / "whole", tmp_path / "requeued"
    warm.start(flags, expected, 2).finish(180)
    requeues = 0
    while requeues < 30:
        run = warm.start(flags, output, 2)
        _wait_or_end(run, "{'loss'")
        time.sleep(0.02 * chance.random())
        run.send(signal.SIGTERM)
        statuses = run.wait(60)
        if statuses == [0, 0]:
            break
        assert statuses == [143, 143], run.all_text()[-3000:]
        requeues += 1
    if requeues == 30:
        warm.start(flags, output, 2).finish(180)
    assert requeues >= 20 and weights_digest(output) == weights_digest(expected)
    assert losses(output) == losses(expected)
