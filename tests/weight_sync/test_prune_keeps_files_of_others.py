"""`prune` removes what manifests list: files, folders and links of others stay, wherever they were put."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.weight_sync import CheckpointMonitor, layout

WEIGHTS = "model.safetensors"
CONFIG = "huggingface/config.json"


def write_part(part: Path, step: int = 1) -> Path:
    part.mkdir(parents=True)
    for name in (WEIGHTS, CONFIG):
        (part / name).parent.mkdir(exist_ok=True)
        (part / name).write_text(name)
    digests = [_C.FileDigest(name, len(name), _C.crc32c(name.encode())) for name in (WEIGHTS, CONFIG)]
    _C.replace_file(str(part / layout.MANIFEST), _C.Manifest(step, 1, "hash", digests).json())
    return part


def write_job(job: Path, *parts: str) -> CheckpointMonitor:
    for step in (1, 2):
        for part in parts or ("actor",):
            write_part(job / f"global_step_{step}" / part, step)
    return CheckpointMonitor(default_local_dir=str(job))


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("name", [
    "notes.txt", "actor/notes.txt", "actor/mine/notes.txt", "actor/huggingface/notes.txt",
    ".hidden/notes.txt", "actor/model.safetensors.aside",
])  # fmt: skip
def test_a_file_of_somebody_else_stays_where_it_is(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = write_job(tmp_path, "actor", "critic")
    step = tmp_path / "global_step_1"
    (step / name).parent.mkdir(exist_ok=True)
    (step / name).write_text("mine")
    with caplog.at_level(logging.WARNING):
        assert monitor.prune(1) == [1]
        assert monitor.prune(1) == []
    assert tree(step) == [name] and (step / name).read_text() == "mine"
    said = [record.message for record in caplog.records]
    top = "/".join(name.split("/")[:2]) if name.startswith("actor/mine") else name
    top = ".hidden" if name.startswith(".hidden") else top
    assert said == [f"{step}: the step was removed, but not what fastsft did not write: {top}"]
    assert [path.name for path in sorted(tmp_path.iterdir()) if path.is_dir()] == [
        "global_step_1",
        "global_step_2",
    ]


@pytest.mark.parametrize("place", ["actor/huggingface", "actor/other", "other", "actor/model.safetensors"])
def test_what_a_planted_link_leads_to_stays(tmp_path: Path, place: str) -> None:
    job, keep = tmp_path / "job", tmp_path / "keep"
    monitor = write_job(job)
    keep.mkdir()
    for name in ("config.json", WEIGHTS, layout.MANIFEST):
        (keep / name).write_text("thesis")
    link = job / "global_step_1" / place
    if link.is_dir():
        for path in link.iterdir():
            path.unlink()
        link.rmdir()
    link.unlink(missing_ok=True)
    link.symlink_to(keep)
    monitor.prune(1)
    assert tree(keep) == sorted(["config.json", WEIGHTS, layout.MANIFEST])
    assert {path.read_text() for path in keep.iterdir()} == {"thesis"}
    if place != f"actor/{WEIGHTS}":  # the name of a file of ours
        assert link.is_symlink()


@pytest.mark.parametrize("whole", [True, False])
def test_a_link_for_a_step_or_a_part_is_not_ours(tmp_path: Path, whole: bool) -> None:
    job, keep = tmp_path / "job", tmp_path / "keep"
    monitor = write_job(job)
    linked = job / "global_step_1" if whole else job / "global_step_1" / "actor"
    linked.rename(keep)
    linked.symlink_to(keep)
    before = tree(keep)
    assert monitor.prune(1) == []
    assert linked.is_symlink() and tree(keep) == before


@pytest.mark.parametrize("kind", ["folder of files", "file", "link"])
def test_trash_of_somebody_else_stays(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    job, keep = tmp_path / "job", tmp_path / "keep"
    monitor = write_job(job)
    trash = job / ".fastsft-trash-global_step_1"
    place = trash if kind == "folder of files" else keep
    write_part(place / "actor")
    (place / "actor" / layout.MANIFEST).unlink()
    if kind == "file":
        trash.write_text("mine")
    elif kind == "link":
        trash.symlink_to(keep)
    before = tree(place)
    assert monitor.prune(1) == []
    assert tree(place) == before and (kind != "file" or trash.read_text() == "mine")
    assert trash.is_symlink() == (kind == "link")
    assert (job / "global_step_1" / "actor" / WEIGHTS).exists()  # what it would be called is taken
    assert f"{trash}: expected nothing of this name; move it away" in caplog.text


def test_a_step_with_a_part_of_another_program_stays_whole(tmp_path: Path) -> None:
    monitor = write_job(tmp_path)
    (tmp_path / "global_step_1" / "critic").mkdir()
    (tmp_path / "global_step_1" / "critic" / "weights.pt").write_text("verl's")
    assert monitor.prune(1) == []
    assert tree(tmp_path / "global_step_1" / "actor") == sorted([WEIGHTS, CONFIG, layout.MANIFEST])


def test_what_a_killed_save_left_goes_with_its_step(tmp_path: Path) -> None:
    monitor = write_job(tmp_path)
    part = tmp_path / "global_step_1" / "actor"
    (part / layout.MANIFEST).rename(part / layout.REPLACED_MANIFEST)
    (part / "model-00000-of-00001.safetensors").write_text("of the new save")
    new = [_C.FileDigest("model-00000-of-00001.safetensors", 15, 0)]
    (part / ".fastsft-tmp-manifest.json-0123").write_text(_C.Manifest(1, 1, "hash", new).json())
    (part / ".fastsft-tmp-fsdp_config.json-0123").write_text("{}")
    (part / ".fastsft-lock").write_text("host x, process 1, since y")
    assert monitor.prune(1) == [1]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["global_step_2"]


@pytest.mark.parametrize("stranger", [None, "actor/notes.txt", "notes.txt"])
def test_a_prune_that_ends_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: str | None
) -> None:
    """It ends before and after each of its changes to the disk."""

    class Killed(BaseException):
        pass

    class Counted:
        def __init__(self, real: Callable[..., object]) -> None:
            self._real = real

        def __call__(self, *args: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            found = self._real(*args)
            left -= 1
            if left == 0:
                raise Killed
            return found

    ended = 0
    for moment in range(1, 16):
        job = tmp_path / str(moment)
        monitor, left = write_job(job, "actor", "critic"), moment
        if stranger is not None:
            (job / "global_step_1" / stranger).write_text("mine")
        with monkeypatch.context() as patch:
            patch.setattr(_C, "remove_named", Counted(_C.remove_named))
            rename, rmdir = Counted(Path.rename), Counted(Path.rmdir)
            patch.setattr(Path, "rename", lambda self, to, call=rename: call(self, to))
            patch.setattr(Path, "rmdir", lambda self, call=rmdir: call(self))
            try:
                monitor.prune(1)
            except Killed:
                ended += 1
        monitor = CheckpointMonitor(default_local_dir=str(job))
        monitor.prune(1)
        directories = [path.name for path in sorted(job.iterdir()) if path.is_dir()]
        if stranger is None:
            assert directories == ["global_step_2"], moment
        else:
            assert tree(job / "global_step_1") == [stranger], moment
            assert directories == ["global_step_1", "global_step_2"], moment
        assert monitor.latest_steps() == (0, 2)
    assert ended > 5


def test_a_damaged_manifest_vouches_for_nothing(tmp_path: Path) -> None:
    monitor = write_job(tmp_path)
    manifest = tmp_path / "global_step_1" / "actor" / layout.MANIFEST
    manifest.write_text(manifest.read_text().replace(WEIGHTS, "weights.safetensor"))
    assert monitor.prune(1) == [] and layout.prune(tmp_path, 1, []) == []
    assert layout.what_was_written(manifest.parents[1]) is None
    assert len(tree(tmp_path / "global_step_1")) == 3
