"""A file system without room, the kernel's own ENOSPC: nothing half, nothing lost, and everybody hears it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weight_sync_parts.save_world import FORMATS

PROGRAM = Path(__file__).parents[1] / "support" / "weight_sync_parts" / "small_disk.py"
# A mount of its own, in a user's name space: no privilege needed where the system allows that at all.
IN_TMPFS = 'mount -t tmpfs -o size=3m none "$1" && shift && exec "$@"'


def in_small_file_system(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    words = ["unshare", "-Urm", "sh", "-c", IN_TMPFS, "sh", str(folder), *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment())


def environment() -> dict[str, str]:
    tests = str(PROGRAM.parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a small file system can be mounted."""
    if in_small_file_system(tmp_path, "true").returncode != 0:
        pytest.skip("this system lets nobody mount a tmpfs (unshare -Urm); RLIMIT_FSIZE is tested elsewhere")
    return tmp_path


def check(outcome: dict[str, Any]) -> None:
    where = outcome["format"]
    assert outcome["fits"] == "saved", where
    for when in ("full", "again"):
        assert "saving step" in outcome[when] and "failed" in outcome[when], (where, outcome[when])
        assert "No space left on device" in outcome[when], (where, outcome[when])
    assert outcome["left"] == [], where
    assert outcome["before"] == [], where  # the complete save that a failed one was to replace
    assert (outcome["room"], outcome["after"]) == ("saved", []), where


def save_in(folder: Path, *formats: str) -> None:
    done = in_small_file_system(folder, sys.executable, str(PROGRAM), str(folder), *formats)
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = json.loads(done.stdout)
    assert len(ranks) == 2
    for outcomes in ranks:
        assert [outcome["format"] for outcome in outcomes] == list(formats)
        for outcome in outcomes:
            check(outcome)


@pytest.mark.chaos  # test_lost_ranks.py has the short form, in which a limit on files takes a disk's part
def test_a_save_without_room_is_told_and_leaves_nothing(folder: Path) -> None:
    save_in(folder, *FORMATS)
