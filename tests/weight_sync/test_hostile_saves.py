"""Saves whose files were made by somebody else: nothing of them runs, and what they are is said."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fastsft import _C
from fastsft.weight_sync import CheckpointCoordinator, fsdp_save_state_dict, layout, read_state_dict
from weight_sync_parts import save_world
from weight_sync_parts.modules import make_engine, make_model, state_of_model


class Calls:
    """Pickled as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def save(folder: Path, save_format: str = "verl_pt", model: Any = None, step: int = 1) -> None:
    coordinator = CheckpointCoordinator()
    engine = make_engine(make_model(False) if model is None else model, "plain")
    fsdp_save_state_dict(engine, str(folder), step, coordinator, save_world.LOGGER, format=save_format)
    coordinator.wait_all()


def list_files(folder: Path) -> None:
    """A manifest that fits whatever lies in `folder`."""
    names = [path.name for path in sorted(folder.iterdir()) if path.name != "manifest.json"]
    digests = [_C.FileDigest(name, *_digest(folder / name)) for name in names if (folder / name).is_file()]
    _C.replace_file(str(folder / "manifest.json"), _C.Manifest(1, 1, "hash", digests).json())


def _digest(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    return len(content), _C.crc32c(content)


SHARD = "model_world_size_1_rank_0.pt"


@pytest.mark.parametrize(("content", "message"), [
    (Calls(os.system, "touch {mark}"), "it names posix.system, which plain data does not need"),
    ({"a": Calls(DeviceMesh, "cpu", [0])}, "'a': expected a DTensor, got Inert"),
    ([torch.ones(2)], "expected a dictionary of DTensors, got list"),
    ({"a": torch.ones(2)}, "'a': expected a DTensor, got Tensor"),
    ({"a": Calls(torch.load, "other.pt")}, "which plain data does not need"),
    ({"a": Calls(torch.UntypedStorage, 8)}, "which is not callable here"),
    ({"a": Calls(torch._utils._rebuild_tensor_v3, *range(7))}, "not a file of shards"),
])  # fmt: skip
def test_nothing_of_a_foreign_shard_is_called(tmp_path: Path, content: Any, message: str) -> None:
    mark = tmp_path / "ran"
    if isinstance(content, Calls) and content._call[0] is os.system:
        content = Calls(os.system, f"touch {mark}")
    folder = tmp_path / "actor"
    folder.mkdir()
    torch.save(content, folder / SHARD)
    list_files(folder)
    with pytest.raises(ValueError, match=message) as caught:
        read_state_dict(folder)
    assert str(folder / SHARD) in str(caught.value)
    assert not mark.exists() and not dist.is_initialized()


def test_shards_of_two_saves_are_told_apart(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "model_world_size_2_rank_0.pt").write_bytes((tmp_path / SHARD).read_bytes())
    list_files(tmp_path)
    with pytest.raises(ValueError, match=r"shards of \[1, 2\] ranks"):
        read_state_dict(tmp_path)
    (tmp_path / SHARD).unlink()
    list_files(tmp_path)
    with pytest.raises(ValueError, match="expected shards of 2 ranks, got 1"):
        read_state_dict(tmp_path)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    whole = (tmp_path / SHARD).read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / SHARD).write_bytes(whole[:size])
        list_files(tmp_path)
        with pytest.raises(ValueError, match=f"{SHARD}: not a file of shards"):
            read_state_dict(tmp_path)


@pytest.mark.variants("[native]", "[verl_pt]")
@pytest.mark.parametrize("save_format", save_world.FORMATS)
def test_a_reader_never_gets_two_saves_at_once(tmp_path: Path, save_format: str) -> None:
    """Every tensor of save number n holds n."""
    done, numbers, between = threading.Event(), set(), 0

    def save_all() -> None:
        for number in range(1, 13):
            model = make_model(False)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(number)
                for buffer in model.buffers():
                    buffer.fill_(number)
            save(tmp_path, save_format, model, number)
        done.set()

    save(tmp_path, save_format)
    writer = threading.Thread(target=save_all)
    writer.start()
    while not done.is_set():
        try:
            state = read_state_dict(tmp_path)
        except ValueError as error:
            assert "not a complete save" in str(error) or "saved again while it was read" in str(error)
            between += 1
            continue
        values = {float(value) for tensor in state.values() for value in tensor.flatten()[:1]}
        if numbers or len(values) == 1:
            assert len(values) == 1
            numbers |= values
    writer.join()
    last = read_state_dict(tmp_path, checksums=True)
    assert {float(tensor.flatten()[0]) for tensor in last.values()} == {12.0}
    assert len(numbers) > 1, f"no save was read between the others ({between} tries)"


def test_files_of_the_next_save_are_never_mixed_in(tmp_path: Path, monkeypatch: Any) -> None:
    """The next save replaces everything after the first shard was read."""
    old, new = make_model(False), make_model(True)
    save(tmp_path, "native", old)
    real, turns = layout.problems, iter([None, "replace"])

    def problems(folder: Path, checksums: bool = False) -> list[str]:
        if next(turns, None) == "replace":
            monkeypatch.setattr(layout, "problems", real)
            save(tmp_path, "native", new, step=2)
        return real(folder, checksums)

    monkeypatch.setattr(layout, "problems", problems)
    read = read_state_dict(tmp_path)
    expected = state_of_model(new)
    assert all(torch.equal(read[name], expected[name]) for name in read)


@pytest.mark.parametrize("kind", ["fifo", "directory", "zero"])
def test_an_iteration_file_that_is_no_file_is_no_step(tmp_path: Path, kind: str) -> None:
    path = tmp_path / layout.STATE_DICT_FILE
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert layout.read_iteration(path) is None


def test_files_of_others_are_moved_aside(tmp_path: Path) -> None:
    strangers = {"model.safetensors": "one", "model.safetensors.index.json": "two", "notes.txt": "three"}
    for name, text in strangers.items():
        (tmp_path / name).write_text(text)
    save(tmp_path, "native")
    assert (tmp_path / "notes.txt").read_text() == "three"
    for name in ("model.safetensors", "model.safetensors.index.json"):
        assert not (tmp_path / name).exists()
        assert (tmp_path / f"{name}.aside").read_text() == strangers[name]
    assert read_state_dict(tmp_path, checksums=True)


@pytest.mark.parametrize("place", ["huggingface", "huggingface/config.json", "fsdp_config.json", SHARD])
@pytest.mark.parametrize("saved_before", [False, True])
def test_nothing_behind_a_planted_link_is_written_or_removed(
    tmp_path: Path, place: str, saved_before: bool
) -> None:
    job, keep = tmp_path / "actor", tmp_path / "keep"
    job.mkdir()
    keep.mkdir()
    if saved_before:
        save(job)
        shutil.rmtree(job / place) if (job / place).is_dir() else (job / place).unlink()
    for name in ("config.json", "tokenizer_config.json"):
        (keep / name).write_text("thesis")
    (job / place).parent.mkdir(exist_ok=True)
    (job / place).symlink_to(keep if place == "huggingface" else keep / "config.json")
    if place == "huggingface":
        with pytest.raises(RuntimeError, match="huggingface is a link or a file: expected a folder"):
            save(job, step=2)
        assert (job / place).is_symlink()
    else:
        save(job, step=2)
        assert read_state_dict(job, checksums=True) and not (job / place).is_symlink()
    assert {path.name: path.read_text() for path in keep.iterdir()} == {
        "config.json": "thesis",
        "tokenizer_config.json": "thesis",
    }


def test_an_outdated_file_is_not_removed_through_a_link(tmp_path: Path) -> None:
    """The manifest before lists a file in a folder that a link has taken the place of."""
    job, keep = tmp_path / "actor", tmp_path / "keep"
    save(job)
    keep.mkdir()
    (keep / "old.json").write_text("thesis")
    (job / "extra").symlink_to(keep)
    files = [*_C.read_manifest(str(job)).files, _C.FileDigest("extra/old.json", 6, _C.crc32c(b"thesis"))]
    _C.replace_file(str(job / "manifest.json"), _C.Manifest(1, 1, "hash", files).json())
    save(job, step=2)
    assert (keep / "old.json").read_text() == "thesis" and (job / "extra").is_symlink()
