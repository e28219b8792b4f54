"""Writing a snapshot and committing it: all ranks or none, the manifest last."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from fastsft import _C
from fastsft.model.directory import digest_tuple, joined_digests, range_tuple
from fastsft.weight_sync.agreement import other_model
from fastsft.weight_sync.errors import ReplacedError
from fastsft.weight_sync.exchange import StoreExchange
from fastsft.weight_sync.files import (
    TEMPORARY,
    remove_file,
    rename_into,
    temporary_files,
    temporary_name,
    write_huggingface_files,
    written_file,
)
from fastsft.weight_sync.formats import FORMATS, SaveFormat
from fastsft.weight_sync.interfaces import Message
from fastsft.weight_sync.layout import MANIFEST, REPLACED_MANIFEST, problems
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.tensor_stream import Snapshot

KINDS = {  # of what ranks post about one save: what those who wait for it do
    "tag": "waiting for rank 0 to begin", "written": "waiting for what ranks wrote",
    "decision": "waiting for rank 0's decision", "renamed": "waiting for ranks that rename",
    "done": "waiting for rank 0's manifest",
}  # fmt: skip
_FSDP_CONFIG = "fsdp_config.json"
_INDEX = "model.safetensors.index.json"  # of a model directory that was here before
_LOGGER = logging.getLogger(__name__)


class SaveJob:
    """One rank's share of a save; `run` is called on a background thread of every rank.

    Files are written under temporary names. Rank 0 waits for W reports, takes away the manifest of an earlier
    save, lets all ranks rename, and writes the manifest when all have. Any error: no manifest, no temporary
    files, and every rank raises the first failing rank's reason.
    error: what is wrong with the snapshot. small_files: of `huggingface/`, on rank 0.
    """

    def __init__(
        self,
        directory: Path,
        snapshot: Snapshot,
        save_format: SaveFormat,
        exchange: StoreExchange,
        error: str | None,
        small_files: dict[str, bytes],
        fsdp_version: int,
    ) -> None:
        self._directory, self._snapshot, self._format = directory, snapshot, save_format
        self._posts, self._error = exchange, error
        self._small_files, self._fsdp_version = small_files, fsdp_version
        self._commit = Commit(directory)
        self._names: list[str] = []  # of the files that this rank renames
        self._tag = ""
        self._same_plan = True
        self._replaced: Future[bool] = Future()  # by rank 0

    def run(self) -> None:
        """Returns when the step is durable on all ranks. RuntimeError when any rank failed or was silent."""
        try:
            self._write()
            if self.leads:
                self._lead()
            else:
                self._follow()
        except ReplacedError:
            raise
        except Exception as error:
            self._remove_temporary()
            raise RuntimeError(f"saving {self.what}: {error}") from error
        finally:
            if not self._replaced.done():
                self._replaced.set_result(False)
            self._commit.close()
            self._posts.leave()

    @property
    def what(self) -> str:
        """For messages."""
        return f"step {self._snapshot.step} to {self._directory}"

    @property
    def leads(self) -> bool:
        """True if this is rank 0, which says what becomes of the save."""
        return self._snapshot.rank == 0

    def replace(self, step: int) -> ReplacedError:
        """On rank 0, in place of `run`: the other ranks hear that `step` replaces this save."""
        self._posts.post("tag", replaced=step)
        self._posts.leave()
        return self._replaced_by(step)

    def was_replaced(self, deadline_s: float) -> bool:
        """On another rank, once rank 0's word is here. RuntimeError when it does not come."""
        try:
            return self._replaced.result(deadline_s)
        except TimeoutError as error:
            raise RuntimeError(
                f"saving {self.what}: rank 0 has neither begun nor replaced it for {deadline_s:g} seconds"
            ) from error

    def _replaced_by(self, step: int) -> ReplacedError:
        return ReplacedError(f"saving {self.what}: replaced by step {step} before it began")

    def abandon(self, why: str) -> None:
        """In place of `run`: tells the other ranks that this one will not write."""
        self._replaced.set_result(False)
        tell_failure(self._posts, self._snapshot.rank, why)

    def _write(self) -> None:
        try:
            self._begin()
            if not self._same_plan:
                self._posts.post("written", plan=self._snapshot.plan.to_json())
                return
            if self._error is not None:
                raise ValueError(self._error)
            files, ranges = self._format.write(self._directory, self._tag, self._snapshot)
            self._names = [file.name for file in files]
            if self.leads:
                files += self._write_small_files()
                self._names = [file.name for file in files]
            self._posts.post(
                "written", files=list(map(digest_tuple, files)), ranges=list(map(range_tuple, ranges))
            )
        except ReplacedError:
            raise
        except Exception as error:
            if self.leads and not self._tag:
                self._posts.post("tag", error=f"rank 0 failed: {error}")
            self._posts.post("written", error=str(error))

    def _begin(self) -> None:
        """Rank 0 says what it saves; the others, whether they save the same."""
        mine = {"step": self._snapshot.step, "format": self._format.name}
        if self.leads:
            self._commit.lock()
            self._tag = secrets.token_hex(8)
            self._posts.post("tag", tag=self._tag, hash=self._snapshot.plan.hash, **mine)
            return
        first = self._posts.collect("tag", [0])[0]
        self._replaced.set_result("replaced" in first)
        if "replaced" in first:
            raise self._replaced_by(first["replaced"])
        self._tag = str(first["tag"])
        for name, value in mine.items():
            if first[name] != value:
                raise ValueError(
                    f"{name}: rank 0 has {first[name]}, this one {value}; all ranks make the same calls with "
                    "the same arguments"
                )
        self._same_plan = first["hash"] == self._snapshot.plan.hash

    def _lead(self) -> None:
        everyone = range(self._snapshot.world_size)
        try:
            reports = self._posts.collect("written", everyone)
            self._check_plans(reports)
            in_order = [reports[rank] for rank in everyone]
            files = joined_digests((report["files"], report["ranges"]) for report in in_order)
            self._commit.stage(self._tag, self._snapshot, files)
        except Exception as error:
            self._posts.post("decision", error=str(error))
            raise
        self._posts.post("decision")
        try:
            ranged = {name for report in in_order for name, *_ in report["ranges"]}
            self._rename([*self._names, *sorted(ranged)])
            self._posts.collect("renamed", everyone)
            self._commit.publish_manifest()
        except Exception as error:
            self._posts.post("done", error=str(error))
            raise
        self._posts.post("done")

    def _follow(self) -> None:
        try:
            self._posts.collect("decision", [0])
        except RuntimeError as error:
            # Rank 0 may be late only, and must not go on with files that are about to be removed.
            with contextlib.suppress(RuntimeError):
                for kind in ("written", "renamed"):
                    self._posts.post(kind, error=str(error))
            raise
        self._rename(self._names)
        self._posts.collect("done", [0])

    def _check_plans(self, reports: dict[int, Message]) -> None:
        for rank, report in sorted(reports.items()):
            if "plan" in report:
                plan = SyncPlan.from_json(report["plan"])
                raise ValueError(other_model(self._snapshot.plan, plan, rank))

    def _write_small_files(self) -> list[_C.FileDigest]:
        config = {"FSDP_version": self._fsdp_version, "world_size": self._snapshot.world_size}
        path = self._directory / temporary_name(_FSDP_CONFIG, self._tag)
        _C.replace_file(str(path), json.dumps(config, indent=4) + "\n")
        written = written_file(self._directory, _FSDP_CONFIG, self._tag)
        return [written, *write_huggingface_files(self._directory, self._tag, self._small_files)]

    def _rename(self, names: Iterable[str]) -> None:
        """Durable on return, and told to rank 0."""
        try:
            for name in names:
                rename_into(self._directory, temporary_name(name, self._tag), name)
            _C.sync_directory(str(self._directory))
            self._posts.post("renamed")
        except Exception as error:
            why = str(error)
            if isinstance(error, FileNotFoundError):
                why = f"a rank gave this save up, and removed what it had waited for too long: {error}"
            self._posts.post("renamed", error=why)
            raise RuntimeError(why) from error

    def _remove_temporary(self) -> None:
        """Of the whole save: it has failed, and whoever is late removes what came after the others had."""
        if self._tag:
            for path in temporary_files(self._directory, self._tag):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        for folder in {(self._directory / name).parent for name in self._names} - {self._directory}:
            with contextlib.suppress(OSError):  # it holds files of an earlier save
                folder.rmdir()


def tell_failure(exchange: StoreExchange, rank: int, why: str) -> None:
    """This rank will not write: the others hear it wherever they wait."""
    for kind in ("tag", "decision") if rank == 0 else ():
        exchange.post(kind, error=f"rank 0 failed: {why}")
    exchange.post("written", error=why)
    exchange.leave()


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
        for file in files:
            path = self._directory / temporary_name(file.name, tag)
            size = path.stat().st_size if path.exists() else "no file"
            if size != file.size:
                raise RuntimeError(
                    f"{file.name}: expected {file.size} bytes in {self._directory}, found {size}; do all "
                    "ranks see the same file system, and have the same local_path?"
                )
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
            raise RuntimeError(f"readers would refuse it: {'; '.join(found)}; move it away and save again")
        _C.sync_directory(str(self._directory))
        (self._directory / REPLACED_MANIFEST).unlink(missing_ok=True)

    def _remove_outdated(self) -> None:
        """Clear what loaders could take, too: delete files of the save before, move those of others aside."""
        there = [path.name for path in self._directory.iterdir() if path.is_file()]
        weights = [name for name in there if any(each.recognises([name]) for each in FORMATS.values())]
        begun = [name for name in there if name.startswith(TEMPORARY)]  # this save has renamed its own
        ours = {*self._before, *begun} - self._names - {self._staged.name}
        for name in ours:
            remove_file(self._directory, name)
        for name in {*weights, _INDEX}.intersection(there) - ours - self._names:
            self._move_aside(name)

    def _move_aside(self, name: str) -> None:
        """Also files of a save that was killed among its renames: no manifest says whose they are."""
        tries = (f"{name}.aside{number}" for number in ("", *(f"-{count}" for count in range(2, 1000))))
        aside = next(each for each in tries if not (self._directory / each).exists())
        os.rename(self._directory / name, self._directory / aside)
        _LOGGER.warning("%s: no save lists %s; it is called %s now", self._directory, name, aside)
