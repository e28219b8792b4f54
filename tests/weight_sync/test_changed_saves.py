"""Files that something else changes while a save writes them, or that are in its way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft import _C
from fastsft.weight_sync import CheckpointCoordinator, fsdp_save_state_dict, layout, read_state_dict, save_job
from fastsft.weight_sync.save_job import Commit
from weight_sync_parts import save_world
from weight_sync_parts.modules import make_engine

FORMATS = {"verl_pt": "model_world_size_1_rank_0.pt", "hf": "model.safetensors",
           "native": "model-00000-of-00001.safetensors"}  # fmt: skip
SMALL = ("fsdp_config.json", "huggingface/config.json")


def save(folder: Path, save_format: str = "native", value: float = 1.0, step: int = 1) -> None:
    engine, coordinator = make_engine(torch.nn.Linear(4, 4), "plain"), CheckpointCoordinator()
    engine.module.config = {"model_type": "linear"}
    for parameter in engine.module.parameters():
        torch.nn.init.constant_(parameter, value)
    fsdp_save_state_dict(engine, str(folder), step, coordinator, save_world.LOGGER, format=save_format)
    coordinator.wait_all()


def temporary(folder: Path, name: str) -> Path:
    """The file that a save has written for `name` and not renamed."""
    (found,) = folder.glob(f".fastsft-tmp-{name.replace('/', '--')}-*")
    return found


def by_link(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    path.symlink_to(other.name)


def by_a_link_to_itself(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def by_another_file(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()  # a file system gives its number to the next one at once
    path.write_bytes(bytes(size))


def by_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def by_nothing(path: Path) -> None:
    path.unlink()


CHANGES = [by_link, by_a_link_to_itself, by_another_file, by_a_fifo, by_nothing]


@pytest.mark.parametrize("save_format", FORMATS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before the commit", "before the rename"])
def test_a_replaced_temporary_file_is_not_committed(
    tmp_path: Path, save_format: str, change: Callable[[Path], None], when: str, monkeypatch: Any
) -> None:
    save(tmp_path, save_format)
    name = FORMATS[save_format]
    if when == "before the commit":
        stage = Commit.stage

        def staged(self: Commit, *args: Any) -> None:
            change(temporary(tmp_path, name))
            stage(self, *args)

        monkeypatch.setattr(Commit, "stage", staged)
    else:
        rename = save_job.rename_into

        def renamed(directory: Path, source: str, target: str) -> None:
            if target == name:
                change(directory / source)
            rename(directory, source, target)

        monkeypatch.setattr(save_job, "rename_into", renamed)
    with pytest.raises(RuntimeError, match=f"(?s)(?=.*{name}).*something else"):
        save(tmp_path, save_format, 2.0, 2)
    if when == "before the commit" and change is not by_another_file:  # it is told by its size and kind
        assert (read_state_dict(tmp_path)["weight"] == 1).all()
    else:
        with pytest.raises(ValueError, match="not a complete save"):
            read_state_dict(tmp_path)
    monkeypatch.undo()
    if (tmp_path / name).is_fifo():
        (tmp_path / name).unlink()
    save(tmp_path, save_format, 3.0, 3)
    assert (read_state_dict(tmp_path)["weight"] == 3).all()


@pytest.mark.parametrize("name", SMALL)
def test_a_replaced_description_is_not_committed(tmp_path: Path, name: str, monkeypatch: Any) -> None:
    stage = Commit.stage

    def staged(self: Commit, *args: Any) -> None:
        by_another_file(temporary(tmp_path, name))
        stage(self, *args)

    monkeypatch.setattr(Commit, "stage", staged)
    with pytest.raises(RuntimeError, match=f"{name}: expected the file that this save wrote, got: another"):
        save(tmp_path)


@pytest.mark.parametrize("save_format", FORMATS)
def test_what_was_written_over_in_place_is_not_read(
    tmp_path: Path, save_format: str, monkeypatch: Any
) -> None:
    stage = Commit.stage

    def staged(self: Commit, *args: Any) -> None:
        path = temporary(tmp_path, FORMATS[save_format])
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        stage(self, *args)

    monkeypatch.setattr(Commit, "stage", staged)
    save(tmp_path, save_format)
    with pytest.raises(ValueError, match="its content was damaged"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("save_format", FORMATS)
def test_a_file_that_is_replaced_while_it_is_read_is_not_returned(
    tmp_path: Path, save_format: str, monkeypatch: Any
) -> None:
    """Between the checksums and the reading, each time."""
    save(tmp_path, save_format)
    name, other = FORMATS[save_format], tmp_path.with_name("other")
    save(other, save_format, 2.0)
    before, real = (tmp_path / name).read_bytes(), layout.problems

    def problems(folder: Path, checksums: bool = False) -> list[str]:
        (folder / name).write_bytes(before)
        found = real(folder, checksums)
        (folder / name).write_bytes((other / name).read_bytes())
        return found

    monkeypatch.setattr(layout, "problems", problems)
    with pytest.raises(ValueError, match="while it was read"):
        read_state_dict(tmp_path)


def make(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "a directory":
        path.mkdir()
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["a directory", "a FIFO"])
@pytest.mark.parametrize("saved_before", [False, True])
@pytest.mark.parametrize("name", [layout.MANIFEST, layout.REPLACED_MANIFEST, FORMATS["native"], *SMALL])
def test_what_is_in_the_way_of_a_save_is_named_and_kept(
    tmp_path: Path, name: str, saved_before: bool, kind: str
) -> None:
    path = tmp_path / name
    if saved_before:
        save(tmp_path)
        path.unlink(missing_ok=True)
    make(path, kind)
    with pytest.raises(RuntimeError) as caught:
        save(tmp_path, value=2.0, step=2)
    assert f"{path}: expected a file of a save, or nothing of this name, got {kind}" in str(caught.value)
    assert "move it away and save again" in str(caught.value)
    assert path.is_dir() if kind == "a directory" else path.is_fifo()
    assert not list(tmp_path.glob(".fastsft-tmp-*"))
    path.rmdir() if kind == "a directory" else path.unlink()
    save(tmp_path, value=3.0, step=3)
    assert (read_state_dict(tmp_path)["weight"] == 3).all()


@pytest.mark.parametrize("kind", ["a directory", "a FIFO"])
def test_a_manifest_that_is_no_file_is_no_save(tmp_path: Path, kind: str) -> None:
    save(tmp_path)
    (tmp_path / layout.MANIFEST).unlink()
    make(tmp_path / layout.MANIFEST, kind)
    with pytest.raises(ValueError, match=f"{layout.MANIFEST}: not a regular file"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize(("step", "world_size", "message"), [
    (-5, 1, "step: expected 0 or more, got -5"), (1, -1, "world_size: expected 1 or more, got -1"),
    (1, 0, "world_size: expected 1 or more, got 0"),
])  # fmt: skip
def test_a_manifest_of_impossible_numbers_is_refused(
    tmp_path: Path, step: int, world_size: int, message: str
) -> None:
    save(tmp_path)
    files = _C.read_manifest(str(tmp_path)).files
    _C.replace_file(str(tmp_path / "manifest.json"), _C.Manifest(step, world_size, "", files).json())
    with pytest.raises(ValueError, match=message):
        read_state_dict(tmp_path)


def test_of_many_missing_files_some_are_named(tmp_path: Path) -> None:
    files = [_C.FileDigest(f"part-{number}", 1, 0) for number in range(10_000)]
    _C.replace_file(str(tmp_path / "manifest.json"), _C.Manifest(1, 1, "", files).json())
    with pytest.raises(ValueError, match=r"part-0: missing; .* and 9995 more") as caught:
        read_state_dict(tmp_path)
    assert len(str(caught.value)) < 1000
