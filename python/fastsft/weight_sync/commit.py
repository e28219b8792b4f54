"""Commit of a save by rank 0: the names of its files, and the manifest last."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
from pathlib import Path

from fastsft import _C
from fastsft.runtime.file_calls import removed
from fastsft.weight_sync.errors import some
from fastsft.weight_sync.files import TEMPORARY, remove_file, temporary_name
from fastsft.weight_sync.formats import FORMATS
from fastsft.weight_sync.held_files import check_free
from fastsft.weight_sync.layout import MANIFEST, REPLACED_MANIFEST, problems
from fastsft.weight_sync.tensor_stream import Snapshot

_INDEX = "model.safetensors.index.json"  # of a model directory that was here before
_LOGGER = logging.getLogger(__name__)


def _check_there(directory: Path, temporary: str, file: _C.FileDigest, world_size: int) -> None:
    """RuntimeError unless rank 0 sees what a rank has written."""
    try:
        status = os.lstat(directory / temporary)
    except FileNotFoundError:
        found = "no file"
    else:
        found = f"{status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "a link, or no regular file"
    if found == f"{file.size} bytes":
        return
    way_out = "does something else change files here?"
    if world_size > 1:
        way_out = f"do all ranks see the same file system, and have the same local_path? Else {way_out}"
    raise RuntimeError(f"{file.name}: expected {file.size} bytes in {directory}, found {found}; {way_out}")


class Commit:
    """Of one save into `directory`, by rank 0. `close` ends the lock that `lock` took."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: set[str] = set()
        self._before: list[str] = []
        self._staged = directory
        self._lock: _C.RunLock | None = None

    def lock(self) -> None:
        """One save at a time in a directory, of whichever trainer. ValueError names the other one."""
        check_free(self._directory, (MANIFEST, REPLACED_MANIFEST))
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

    def stage(self, tag: str, snapshot: Snapshot, files: list[_C.FileDigest]) -> None:
        """The manifest is durable under a temporary name: renaming needs no room any more. From here on the
        directory is incomplete for readers, and for a monitor that starts again.

        RuntimeError unless rank 0 sees what the others wrote: a manifest of files elsewhere is none.
        """
        check_free(self._directory, [MANIFEST, REPLACED_MANIFEST, *(file.name for file in files)])
        for file in files:
            _check_there(self._directory, temporary_name(file.name, tag), file, snapshot.world_size)
        manifest = _C.Manifest(snapshot.step, snapshot.world_size, snapshot.plan.hash, files)
        self._staged = self._directory / temporary_name(MANIFEST, tag)
        self._names = {file.name for file in files}
        _C.replace_file(str(self._staged), manifest.json())
        self._remove_manifest()

    def _remove_manifest(self) -> None:
        path = self._directory / MANIFEST
        if not path.exists():
            return
        with contextlib.suppress(ValueError):  # a damaged one lists nothing that could be relied on
            self._before = [file.name for file in _C.read_manifest(str(self._directory)).files]
        os.replace(path, self._directory / REPLACED_MANIFEST)
        _C.sync_directory(str(self._directory))

    def publish_manifest(self) -> None:
        """The step is complete with this, whatever happens then. RuntimeError where readers refuse it."""
        self._remove_outdated()
        os.replace(self._staged, self._directory / MANIFEST)
        found = problems(self._directory)
        if found:
            (self._directory / MANIFEST).unlink()
            raise RuntimeError(f"readers would refuse it: {some(found, '; ')}; move it away and save again")
        _C.sync_directory(str(self._directory))
        removed((self._directory / REPLACED_MANIFEST).unlink, self._directory / REPLACED_MANIFEST)

    def _remove_outdated(self) -> None:
        """Clear what loaders could take, too: delete files of the save before, move those of others aside."""
        there = [path.name for path in self._directory.iterdir() if path.is_file()]
        weights = [name for name in there if any(each.recognises([name]) for each in FORMATS.values())]
        begun = [name for name in there if name.startswith(TEMPORARY)]  # this save has renamed its own
        ours = {*self._before, *begun} - self._names - {self._staged.name}
        for name in ours:
            removed(functools.partial(remove_file, self._directory, name), self._directory / name)
        for name in {*weights, _INDEX}.intersection(there) - ours - self._names:
            removed(functools.partial(self._move_aside, name), self._directory / name)

    def _move_aside(self, name: str) -> None:
        """Also files of a save that was killed among its renames: no manifest says whose they are."""
        tries = (f"{name}.aside{number}" for number in ("", *(f"-{count}" for count in range(2, 1000))))
        aside = next(each for each in tries if not (self._directory / each).exists())
        os.rename(self._directory / name, self._directory / aside)
        _LOGGER.warning("%s: no save lists %s; it is called %s now", self._directory, name, aside)
