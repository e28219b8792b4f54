"""Directories and files that a user without rights meets: named at once, and left as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.checkpoint.load import newest_checkpoint
from fastsft.model.output_directory import prepare_output_directory
from fastsft.ranks.output_directory import run_lock
from plain_user import as_plain_user
from saved_runs import copy


@pytest.fixture
def open_path(tmp_path: Path) -> Iterator[Path]:
    """A directory that everybody reaches; only its parents' rights are changed, for a while."""
    changed = [each for each in (tmp_path, *tmp_path.parents) if each.stat().st_uid == os.getuid()]
    before = [(each, each.stat().st_mode) for each in changed if each != each.parent]
    for each, mode in before:
        each.chmod(mode | 0o055)
    yield tmp_path
    for each, mode in before:
        each.chmod(mode)


@pytest.mark.parametrize("kind", ["read-only", "inside of it", "hidden"])
def test_an_output_directory_that_takes_no_files(open_path: Path, kind: str) -> None:
    folder = open_path / "output"
    folder.mkdir()
    folder.chmod(0o000 if kind == "hidden" else 0o555)
    wanted = folder / "run" if kind == "inside of it" else folder
    said = as_plain_user(lambda: prepare_output_directory("model", wanted))
    assert said.startswith(f"ValueError: --output_dir: {wanted}: expected a directory to write into"), said
    assert "Permission denied; choose another --output_dir" in said
    assert list(folder.iterdir()) == []
    folder.chmod(0o755)


def test_an_output_directory_of_ones_own_is_taken(open_path: Path) -> None:
    (open_path / "shared").mkdir()
    (open_path / "shared").chmod(0o777)
    assert as_plain_user(lambda: prepare_output_directory("model", open_path / "shared" / "run")) == ""


def test_the_lock_of_another_user_is_named(open_path: Path) -> None:
    folder = open_path / "output"
    folder.mkdir()
    folder.chmod(0o777)
    with run_lock(folder):
        (folder / ".fastsft-lock").chmod(0o600)
        said = as_plain_user(lambda: print(_C.RunLock(str(folder))))
    assert ".fastsft-lock" in said and "Permission denied" in said, said
    assert "\n" not in said.strip()


def test_a_checkpoint_that_cannot_be_read_is_named(open_path: Path, finished: Path) -> None:
    output = copy(finished, open_path / "output", 2)
    (output / "checkpoint-2" / "model.safetensors").chmod(0o600)
    said = as_plain_user(lambda: print(newest_checkpoint(output)))
    assert "model.safetensors" in said and "Permission denied" in said, said


def test_weights_that_cannot_be_read_are_named(open_path: Path, model: Path) -> None:
    file = open_path / "model.safetensors"
    file.write_bytes((model / "model.safetensors").read_bytes())
    file.chmod(0o600)
    said = as_plain_user(lambda: print(_C.SafetensorsReader(str(file))))
    assert str(file) in said and "Permission denied" in said, said
