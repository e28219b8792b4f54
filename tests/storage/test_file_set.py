"""Files of a model that take their names together, and sets that a crash or a stranger left unfit for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.model.output_directory import recover_directory
from fastsft.ranks.output_directory import run_lock

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "folder/x.jinja": b"x"}


def commit(parent: Path) -> Path:
    """A set that waits to be installed."""
    directory = _C.AtomicDirectory(str(parent), "model")
    for name, content in FILES.items():
        path = Path(directory.path, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    digests = [_C.FileDigest(name, len(content), _C.crc32c(content)) for name, content in FILES.items()]
    return Path(directory.commit(_C.file_set_name(), _C.Manifest(1, 1, "", digests)))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("moved", range(len(FILES) + 1))
def test_a_crash_while_files_take_their_names_is_finished(tmp_path: Path, moved: int) -> None:
    waiting = commit(tmp_path)
    for name in list(FILES)[:moved]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (waiting / name).rename(tmp_path / name)
    assert _C.finish_file_sets(str(tmp_path)) == []
    assert contents(tmp_path) == FILES and not waiting.exists()


def spoil(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"spoiled")


def move(waiting: Path, *names: str) -> None:
    for name in names:
        (waiting.parent / name).parent.mkdir(exist_ok=True)
        (waiting / name).rename(waiting.parent / name)


def replaced(waiting: Path) -> None:
    """Its configuration has its name, and another one took it since: the weights are good."""
    move(waiting, "config.json")
    spoil(waiting.parent, "config.json")


def overtaken(waiting: Path) -> None:
    move(waiting, *FILES)
    spoil(waiting.parent, "model.safetensors")


def emptied(waiting: Path) -> None:
    for name in (*FILES, "manifest.json"):
        (waiting / name).unlink()
    (waiting / "folder").rmdir()


# What happened, what is said of it, and whether nothing in the set is of use.
BROKEN: dict[str, tuple[Callable[[Path], None], str, bool]] = {
    "one damaged": (lambda waiting: spoil(waiting, "config.json"), "config.json is damaged", False),
    "all damaged": (lambda waiting: spoil(waiting, *FILES), "config.json is damaged", True),
    "one missing": (lambda waiting: (waiting / "folder/x.jinja").unlink(), "x.jinja is missing", False),
    "one replaced": (replaced, "config.json was replaced meanwhile", False),
    "all in place, one replaced": (overtaken, "model.safetensors was replaced meanwhile", True),
    "no manifest": (lambda waiting: (waiting / "manifest.json").unlink(), "no manifest.json", False),
    "a torn manifest": (lambda waiting: spoil(waiting, "manifest.json"), "not a manifest|not JSON", False),
    "empty": (emptied, "no manifest.json", True),
}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_set_that_cannot_be_finished_is_named(tmp_path: Path, capsys, kind: str, held: bool) -> None:
    """It goes when nothing of it is of use and no other run can be writing it."""
    damage, expected, useless = BROKEN[kind]
    waiting = commit(tmp_path)
    damage(waiting)
    before = contents(waiting)
    if held:
        with run_lock(tmp_path):
            recover_directory(tmp_path)
    else:
        recover_directory(tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{waiting}, which a save of a model left, cannot be finished: ")
    assert any(words in line for words in expected.split("|")), line
    removed = held and useless
    assert line.endswith("; removed") == removed == (not waiting.exists())
    if not removed:
        assert contents(waiting) == before


def test_a_file_that_it_does_not_list_keeps_a_set(tmp_path: Path) -> None:
    waiting = commit(tmp_path)
    overtaken(waiting)
    (waiting / "folder" / "notes.txt").write_text("mine")
    (found,) = _C.finish_file_sets(str(tmp_path), remove_useless=True)
    assert not found.removed and (waiting / "folder" / "notes.txt").exists()
