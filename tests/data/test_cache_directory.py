"""The directory of the token caches: where it is, and that what is old goes from it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.data.token_cache import cache_directory, only_writer, remove_forgotten

DAY = 24 * 3600.0
KEY = "0123456789abcdef" * 4


def test_where_caches_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_directory(None) == tmp_path / "x" / "fastsft"
    assert cache_directory("none") is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory(None) == tmp_path / ".cache" / "fastsft"


@pytest.mark.parametrize(
    ("name", "days"),
    [
        (f"{KEY}.tokens", 30),
        (f"{KEY}.lock", 1),
        (f"{_C.cache_temporary_prefix}ab-0", 1),
        (f"digests/{KEY[:32]}.json", 30),
    ],
)
def test_what_is_old_goes(name: str, days: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    for age, stays in ((days - 0.5, True), (days + 0.5, False)):
        path.write_text("")
        os.utime(path, (time.time(), time.time() - age * DAY))
        remove_forgotten(tmp_path)
        assert path.exists() == stays, (name, age)


@pytest.mark.parametrize(
    "name",
    ["my.tokens", f"{KEY}.tokens.bak", f"{KEY[1:]}.tokens", "digests/notes.json", "a.lock", "data.json"],
)
def test_what_others_put_there_stays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    os.utime(path, (0, 0))
    remove_forgotten(tmp_path)
    assert path.exists()


def test_a_lock_goes_with_its_block(tmp_path: Path) -> None:
    with only_writer(tmp_path, KEY):
        assert (tmp_path / f"{KEY}.lock").exists()
    assert not list(tmp_path.iterdir())
