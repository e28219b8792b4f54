"""Many syncs: a process holds no more after the last than after the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks import run_ranks
from weight_sync_parts import drift_world

KB_PER_SYNC = 12.0  # a tensor is 256, a rank's part of it 128; what the test notes of a sync is 2


def check(folder: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    # torch notes the last 2000 collectives of a process; until it has so many that grows as well.
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    for rank in run_ranks(2, drift_world.many, str(folder), last, seconds=1200.0):
        early, late = rank[first - 1], rank[-1]
        assert late.threads <= early.threads and late.files <= early.files
        grown_kb = 1024 * (late.allocated_mb - early.allocated_mb)
        assert grown_kb < KB_PER_SYNC * (last - first), (early, late)


def test_ten_syncs_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, 4, 10)


@pytest.mark.chaos
def test_a_hundred_syncs_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, 20, 100)
