"""What fastsft did not write is neither removed nor written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastsft import _C
from planted import HEX, checkpoint, stage


def contents(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("manifest", [None, "{}", '{"files": []}', "not json"])
def test_a_checkpoint_of_another_program_keeps_its_files(tmp_path: Path, manifest: str | None) -> None:
    """A save of the same step puts it aside; rotation and cleaning up leave it where it is."""
    other = tmp_path / "checkpoint-2"
    other.mkdir()
    (other / "optimizer.pt").write_bytes(b"precious")
    if manifest is not None:
        (other / "manifest.json").write_text(manifest)
    checkpoint(tmp_path, 1)
    checkpoint(tmp_path, 3)
    _C.rotate_checkpoints(str(tmp_path), 1, [])
    _C.remove_leftovers(str(tmp_path))
    assert (other / "optimizer.pt").read_bytes() == b"precious"
    with pytest.raises(ValueError, match="left as it is"):
        _C.delete_directory(str(other))
    directory, listed = stage(tmp_path, {"a": b"1"})
    directory.commit("checkpoint-2", listed)
    (aside,) = tmp_path.glob("previous-*-checkpoint-2")
    assert directory.kept == str(aside) and (aside / "optimizer.pt").read_bytes() == b"precious"
    assert _C.verify_directory(str(other)) == []


@pytest.mark.parametrize("kind", ["file", "fifo", "closed"])
def test_what_is_no_checkpoint_is_put_aside(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "checkpoint-2"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "file":
        path.write_bytes(b"precious")
    else:
        path.mkdir(mode=0)
    checkpoint(tmp_path, 2)
    (aside,) = tmp_path.glob("previous-*")
    assert aside.is_fifo() if kind == "fifo" else aside.exists()
    assert _C.verify_directory(str(path)) == []


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("name", ["results.json", "evals/mmlu.json", "model/extra.json"])
def test_files_of_others_in_our_checkpoints_are_kept(tmp_path: Path, name: str, replaced: bool) -> None:
    files = {"model.safetensors": b"weights", "model/listed.json": b"ours"}
    path = checkpoint(tmp_path, 1, files)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_bytes(b"mine")
    if replaced:
        directory, listed = stage(tmp_path, {"a": b"1"})
        directory.commit("checkpoint-1", listed)
        kept = directory.kept
    else:
        checkpoint(tmp_path, 2)
        kept = _C.rotate_checkpoints(str(tmp_path), 1, [])["checkpoint-1"]
    assert Path(kept).name.endswith("-checkpoint-1")
    assert {str(p.relative_to(kept)) for p in Path(kept).rglob("*") if p.is_file()} == {name}
    assert (Path(kept) / name).read_bytes() == b"mine"


def test_a_crash_in_the_middle_of_a_removal_loses_nothing(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 1, {"a": b"1", "b": b"2"})
    (path / "notes").write_bytes(b"mine")
    (path / "a").unlink()
    path.rename(tmp_path / f".fastsft-trash-checkpoint-1-{HEX}")
    _C.remove_leftovers(str(tmp_path))
    (kept,) = tmp_path.iterdir()
    assert kept.name.endswith("-checkpoint-1") and contents(tmp_path) == {b"mine"}


@pytest.mark.parametrize(
    "name", [".fastsft-old-checkpoint-9-", ".fastsft-trash-checkpoint-9-", ".fastsft-tmp-9-"]
)
def test_directories_of_our_names_without_a_mark_stay(tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"{name}{HEX}"
    folder.mkdir()
    for file in ("precious", "manifest.json"):
        (folder / file).write_bytes(b"precious")
    _C.restore_replaced(str(tmp_path))
    assert _C.remove_leftovers(str(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert len(list(folder.iterdir())) == 2


ARGUMENTS = b'{"learning_rate": 1e-5, "output_dir": "out"}'


def install(output: Path, files: dict[str, bytes]) -> str:
    directory, manifest = stage(output, files, "model")
    name = _C.file_set_name()
    directory.commit(name, manifest)
    return _C.install_file_set(str(output), name)


def test_the_model_of_another_program_is_put_aside(tmp_path: Path) -> None:
    """With the weight files that a save removes; what is alike needs no second copy."""
    theirs = {
        "config.json": b"{}", "model-00001-of-00002.safetensors": b"w1", "tokenizer.json": b"same",
        "model-00002-of-00002.safetensors": b"w2", "model.safetensors.index.json": b"index",
        "training_args.bin": b"pickle", "training_args.json": b"precious", "notes.txt": b"mine",
    }  # fmt: skip
    for name, content in theirs.items():
        (tmp_path / name).write_bytes(content)
    ours = {"model.safetensors": b"new", "config.json": b'{"a": 1}', "training_args.json": ARGUMENTS}
    folder = install(tmp_path, {**ours, "tokenizer.json": b"same"})
    assert Path(folder).name.endswith("-files")
    moved = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    names = ("config.json", "model.safetensors.index.json", "training_args.json")
    weights = [name for name in theirs if name.startswith("model-")]
    assert moved == {name: theirs[name] for name in (*names, *weights)}
    assert not list(tmp_path.glob("model-*")) and (tmp_path / "notes.txt").exists()
    assert all((tmp_path / name).read_bytes() == content for name, content in ours.items())


def test_our_own_model_is_replaced(tmp_path: Path) -> None:
    for number in range(2):
        files = {"model.safetensors": b"%d" % number, "training_args.json": ARGUMENTS + b" " * number}
        assert install(tmp_path, files) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    assert _C.is_our_model(str(tmp_path))
    (tmp_path / "training_args.bin").touch()
    assert not _C.is_our_model(str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "folder"])
def test_what_is_no_file_where_a_file_belongs(tmp_path: Path, name: str) -> None:
    """Also in a directory of ours: a folder in the place of a file, a FIFO in that of a folder."""
    install(tmp_path, {"training_args.json": ARGUMENTS, "model.safetensors": b"1"})
    if name == "folder":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_bytes(b"precious")
    files = {
        "model.safetensors": b"2",
        "config.json": b"{}",
        "folder/x": b"x",
        "training_args.json": ARGUMENTS,
    }
    folder = Path(install(tmp_path, files))
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).is_fifo() or (folder / name / "mine").read_bytes() == b"precious"
    assert all((tmp_path / file).read_bytes() == content for file, content in files.items())
