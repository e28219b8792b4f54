"""A link is never followed by a removal, a rename or a write: what lies behind it is somebody else's."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fastsft import _C
from planted import HEX, checkpoint, stage, state


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    """Somebody's directory, outside of every output directory."""
    folder = tmp_path / "keep"
    (folder / "deep" / "er").mkdir(parents=True)
    for name in ("thesis", "deep/notes", "deep/er/x", "manifest.json", ".fastsft-owner", "config.json"):
        (folder / name).write_text(f"my {name}")
    return folder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


LINKS = [
    "checkpoint-1", f".fastsft-trash-checkpoint-1-{HEX}", f".fastsft-tmp-1-{HEX}", f".fastsft-new-{HEX}",
    f".fastsft-old-checkpoint-7-{HEX}", "previous-20260101T000000Z-checkpoint-1",
]  # fmt: skip
TARGETS: dict[str, Callable[[Path], str]] = {
    "a directory": str,
    "a file": lambda keep: str(keep / "thesis"),
    "nothing": lambda keep: str(keep / "missing"),
    "a chain": lambda keep: "second",
    "itself": lambda keep: "",
}


def everything(output: Path) -> None:
    """All that removes or renames, one after the other."""
    checkpoint(output, 1)
    checkpoint(output, 2)
    checkpoint(output, 3)
    _C.finish_file_sets(str(output), remove_useless=True)
    _C.remove_leftovers(str(output))
    _C.rotate_checkpoints(str(output), 1, [])
    for entry in output.iterdir():
        if entry.name.startswith("checkpoint-") and entry.is_symlink():
            with pytest.raises(ValueError, match="left as it is"):
                _C.delete_directory(str(entry))


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", LINKS)
def test_links_of_our_names(keep: Path, output: Path, name: str, kind: str) -> None:
    (output / "second").symlink_to(keep)
    (output / name).symlink_to(TARGETS[kind](keep) or name)
    before = state(keep)
    everything(output)
    assert state(keep) == before
    assert _C.verify_directory(str(output / "checkpoint-3")) == []


@pytest.mark.parametrize("inside", [False, True])
def test_a_link_in_the_middle(keep: Path, output: Path, inside: bool) -> None:
    """In a checkpoint: of a folder that its manifest lists, and of one that it does not."""
    path = checkpoint(output, 1, {"model.safetensors": b"w", "deep/notes": b"n"})
    if inside:
        (path / "deep" / "notes").unlink()
        (path / "deep").rmdir()
        (path / "deep").symlink_to(keep / "deep")
    else:
        (path / "more").symlink_to(keep)
    before = state(keep)
    kept = Path(_C.delete_directory(str(path)))
    assert state(keep) == before
    assert [entry.name for entry in kept.iterdir()] == ["deep" if inside else "more"]


@pytest.mark.parametrize("where", ["x", "folder/x"])
def test_unfinished_directories_with_links(keep: Path, output: Path, where: str) -> None:
    for marked in ("tmp", "trash"):
        folder = output / f".fastsft-{marked}-5-{HEX}"
        (folder / where).parent.mkdir(parents=True)
        (folder / where).symlink_to(keep)
        (folder / ".fastsft-owner").touch()
    before = state(keep)
    assert len(_C.remove_leftovers(str(output))) == 2
    assert state(keep) == before and not list(output.iterdir())


def test_writes_into_a_directory_that_became_a_link(keep: Path, output: Path) -> None:
    """Between making the temporary directory and writing into it: nothing is written elsewhere."""
    directory, manifest = stage(output, {"model.safetensors": b"w"})
    path = Path(directory.path)
    path.rename(output / "moved")
    path.symlink_to(keep)
    before = state(keep)
    for write in (
        lambda: _C.write_file(str(path / "new.json"), "x"),
        lambda: _C.ChecksummedRanges(str(path / "config.json")),
        lambda: _C.WeightFiles(str(path), [_C.TensorSpec("a", "F32", [1])], [0], 1 << 20),
        lambda: directory.commit("checkpoint-1", manifest),
    ):
        with pytest.raises(RuntimeError, match=r"Not a directory|symbolic links"):
            write()
    directory.discard()
    assert state(keep) == before


@pytest.mark.parametrize("name", ["new.json", "range.bin"])
def test_a_planted_file_name_is_not_written_through(keep: Path, output: Path, name: str) -> None:
    (output / name).symlink_to(keep / "thesis")
    before = state(keep)
    with pytest.raises(RuntimeError, match=r"File exists|symbolic links"):
        if name == "new.json":
            _C.write_file(str(output / name), "x")
        else:
            _C.ChecksummedRanges(str(output / name))
    _C.replace_file(str(output / "config.json"), "{}")
    assert state(keep) == before


def test_an_output_directory_behind_a_link_works(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "disk")
    for step in (1, 1, 2, 3):
        checkpoint(link, step)
    assert _C.rotate_checkpoints(str(link), 1, []) == {"checkpoint-1": "", "checkpoint-2": ""}
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["checkpoint-3"]


def test_a_race_for_a_directory_that_is_removed(keep: Path, output: Path) -> None:
    """One thread puts a link in the place of folders of a checkpoint while another removes it."""
    before = state(keep)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for trash in output.glob(".fastsft-trash-*/deep"):
                try:
                    trash.rename(output / f"gone-{os.urandom(4).hex()}")
                    trash.symlink_to(keep / "deep")
                except OSError:
                    pass

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        for step in range(30):
            files = {f"deep/er/{number}": b"x" for number in range(10)} | {"deep/notes": b"n"}
            path = checkpoint(output, step, files)
            with contextlib.suppress(RuntimeError):  # refused in the middle; what lies elsewhere counts
                _C.delete_directory(str(path))
    finally:
        done.set()
        racer.join()
    assert state(keep) == before


def test_file_sets_install_through_no_link(keep: Path, output: Path) -> None:
    """A set, whoever put it there, with a folder of the output directory that is a link by now."""
    files = {"config.json": b"{}", "model.safetensors": b"w", "deep/notes": b"theirs"}
    directory, manifest = stage(output, files, "model")
    directory.commit(f".fastsft-new-{HEX}", manifest)
    (output / "deep").symlink_to(keep / "deep")
    (output / "config.json").symlink_to(keep / "config.json")
    before = state(keep)
    assert _C.finish_file_sets(str(output)) == []
    assert state(keep) == before
    assert not (output / "deep").is_symlink() and (output / "deep" / "notes").read_bytes() == b"theirs"
    (aside,) = output.glob("previous-*-files")
    assert os.readlink(aside / "deep") == str(keep / "deep")


@pytest.mark.parametrize("where", ["config.json", "deep"])
def test_a_planted_set_with_links_is_not_installed(keep: Path, output: Path, where: str) -> None:
    """Neither are files of others moved out of their directory, nor links installed as files of the model."""
    files = {
        "config.json": (keep / "config.json").read_bytes(),
        "deep/notes": (keep / "deep/notes").read_bytes(),
    }
    directory, manifest = stage(output, files, "model")
    waiting = Path(directory.commit(f".fastsft-new-{HEX}", manifest))
    if where == "deep":
        (waiting / "deep" / "notes").unlink()
        (waiting / "deep").rmdir()
    else:
        (waiting / where).unlink()
    (waiting / where).symlink_to(keep / where)
    before = state(keep)
    (broken,) = _C.finish_file_sets(str(output))
    assert "behind a link" in broken.problem and not broken.removed
    assert state(keep) == before and not (output / "config.json").exists()


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
def test_what_is_no_file_in_a_checkpoint_is_named_and_nobody_waits(output: Path, kind: str) -> None:
    path = checkpoint(output, 1)
    for name in ("config.json", "manifest.json"):
        (path / name).unlink()
        os.mkfifo(path / name) if kind == "fifo" else (path / name).symlink_to(kind)
        (problem,) = _C.verify_directory(str(path))
        assert "not a regular file" in problem or "link that leaves" in problem, problem
    waiting, manifest = stage(output, {"config.json": b"{}"}, "model")
    folder = Path(waiting.commit(f".fastsft-new-{HEX}", manifest))
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    (broken,) = _C.finish_file_sets(str(output), remove_useless=True)
    assert "is no file" in broken.problem
