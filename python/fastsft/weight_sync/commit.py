"""Commit of written files by rank 0: rename, and a manifest last."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

from fastsft.weight_sync.formats import TEMPORARY, WrittenFile, save_formats, temporary_name
from fastsft.weight_sync.layout import MANIFEST, REPLACED_MANIFEST, problems
from fastsft.weight_sync.own_folders import remove_file, rename_into
from fastsft.weight_sync.staging import Snapshot

_LOGGER = logging.getLogger(__name__)
_INDEX = "model.safetensors.index.json"  # of a model directory that was here before


class Commit:
    """Of one save into `directory`. `close` ends the lock that `lock` took."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: set[str] = set()
        self._before: list[str] = []
        self._staged = directory
        self._lock: Any = None

    def lock(self) -> None:
        """One save at a time in a directory, of whichever trainer. ValueError names the other one."""
        from fastsft import _C

        try:
            self._lock = _C.RunLock(
                str(self._directory), "another save", "wait for it, or give every trainer its own directory"
            )
        except RuntimeError as error:  # of a file system that has no locks
            _LOGGER.warning("%s; two saves into this directory at once would not be noticed", error)

    def close(self) -> None:
        """A second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def join_shared(self, files: list[WrittenFile]) -> list[WrittenFile]:
        """Files of several ranks as one: their ranges must add up to the file that is there."""
        from fastsft import _C

        if not files:
            return []
        first = files[0]
        digest = _C.digest_file(str(self._directory / first.temporary))
        written = sum(file.size for file in files)
        if digest.size != written:
            raise RuntimeError(
                f"{first.name}: expected {written} bytes from {len(files)} ranks, found {digest.size}; do "
                "all ranks see the same file system?"
            )
        return [WrittenFile(first.temporary, first.name, digest.size, digest.crc32c, shared=True)]

    def check_present(self, files: list[WrittenFile]) -> None:
        """RuntimeError unless rank 0 sees what the others wrote: a manifest of files elsewhere is none."""
        for file in files:
            path = self._directory / file.temporary
            size = path.stat().st_size if path.exists() else "no file"
            if size != file.size:
                raise RuntimeError(
                    f"{file.name}: expected {file.size} bytes in {self._directory}, found {size}; do all "
                    "ranks see the same file system, and have the same local_path?"
                )

    def stage_manifest(self, tag: str, snapshot: Snapshot, files: list[WrittenFile]) -> None:
        """Durable under a temporary name: when all have renamed, no room is needed any more."""
        from fastsft import _C

        digests = [_C.FileDigest(file.name, file.size, file.crc32c) for file in files]
        manifest = _C.Manifest(snapshot.step, snapshot.world_size, snapshot.plan.hash, digests)
        self._staged = self._directory / temporary_name(MANIFEST, tag)
        self._names = {file.name for file in files}
        _C.replace_file(str(self._staged), manifest.json())

    def take_away_manifest(self) -> None:
        """From here on the directory is incomplete for readers, and for a monitor that starts again."""
        from fastsft import _C

        path = self._directory / MANIFEST
        if not path.exists():
            return
        with contextlib.suppress(ValueError):  # a damaged one lists nothing that could be relied on
            self._before = [file.name for file in _C.read_manifest(str(self._directory)).files]
        os.replace(path, self._directory / REPLACED_MANIFEST)
        _C.sync_directory(str(self._directory))

    def publish_manifest(self) -> None:
        """The step is complete with this, whatever happens then. RuntimeError where readers refuse it."""
        from fastsft import _C

        self._remove_outdated()
        os.replace(self._staged, self._directory / MANIFEST)
        found = problems(self._directory)
        if found:
            (self._directory / MANIFEST).unlink()
            raise RuntimeError(f"readers would refuse it: {'; '.join(found)}; move it away and save again")
        _C.sync_directory(str(self._directory))
        (self._directory / REPLACED_MANIFEST).unlink(missing_ok=True)

    def _remove_outdated(self) -> None:
        """Clear what loaders could take, too: delete files of the save before, move those of others aside."""
        there = [path.name for path in self._directory.iterdir() if path.is_file()]
        weights = [name for name in there if any(each.recognises([name]) for each in save_formats().values())]
        begun = [name for name in there if name.startswith(TEMPORARY)]  # this save has renamed its own
        ours = {*self._before, *begun} - self._names - {self._staged.name}
        for name in ours:
            remove_file(self._directory, name)
        for name in {*weights, _INDEX}.intersection(there) - ours - self._names:
            self._move_aside(name)

    def _move_aside(self, name: str) -> None:
        """Also files of a save that was killed among its renames: no manifest says whose they are."""
        numbers = ("", *(f"-{number}" for number in range(2, 1000)))
        aside = next(
            f"{name}.aside{number}"
            for number in numbers
            if not (self._directory / f"{name}.aside{number}").exists()
        )
        os.rename(self._directory / name, self._directory / aside)
        _LOGGER.warning("%s: no save lists %s; it is called %s now", self._directory, name, aside)


def rename_all(directory: Path, files: list[WrittenFile]) -> None:
    """Durable on return."""
    from fastsft import _C

    for file in files:
        rename_into(directory, file.temporary, file.name)
    _C.sync_directory(str(directory))
