"""One save of weights: every rank writes its files, and rank 0 commits them by a manifest, which comes
last.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from fastsft import _C
from fastsft.model.model_save import digest_tuple, joined_digests, range_tuple
from fastsft.ranks.exchange import Message, StoreExchange
from fastsft.runtime.file_calls import removed
from fastsft.weight_sync.agreement import other_model
from fastsft.weight_sync.files import (
    TEMPORARY,
    HeldFiles,
    check_free,
    remove_file,
    rename_into,
    temporary_files,
    temporary_name,
    write_huggingface_files,
    written_file,
)
from fastsft.weight_sync.formats import FORMATS, SaveFormat
from fastsft.weight_sync.interfaces import ReplacedError
from fastsft.weight_sync.layout import MANIFEST, REPLACED_MANIFEST, problems, some
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.tensor_stream import Snapshot

KINDS = {  # kinds of posts about a save, each with the phrase for a rank that waits for it
    "tag": "waiting for rank 0 to begin", "written": "waiting for what ranks wrote",
    "decision": "waiting for rank 0's decision", "renamed": "waiting for ranks that rename",
    "done": "waiting for rank 0's manifest",
}  # fmt: skip
_FSDP_CONFIG = "fsdp_config.json"
_INDEX = "model.safetensors.index.json"  # if an earlier model left this file, it would misdirect loaders
_LOGGER = logging.getLogger(__name__)


class SaveJob:
    """One rank's work for a save. `run` is called on a background thread on every rank.

    Files are written under temporary names. Rank 0 waits for all ranks' reports, removes an earlier save's
    manifest, lets all ranks rename their files, and then writes the manifest. After any error there
    is neither a manifest nor a temporary file, and every rank raises the first failed rank's error.
    error: message about a fault in the snapshot, or None.
    small_files: on rank 0, the files for the folder `huggingface`.
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
        self._commit, self._held = Commit(directory), HeldFiles()
        self._names: list[str] = []  # final names of the files that this rank renames
        self._tag = ""
        self._same_plan = True
        self._replaced: Future[bool] = Future()  # result True if rank 0 has replaced this save
        self._what = f"step {snapshot.step} to {directory}"

    def run(self) -> None:
        """Save the step durably on all ranks. RuntimeError if a rank has failed or is silent."""
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
            raise RuntimeError(f"saving {self._what}: {error}") from error
        finally:
            if not self._replaced.done():
                self._replaced.set_result(False)
            self._commit.close()
            self._held.close()
            self._posts.leave()

    @property
    def leads(self) -> bool:
        """True on rank 0, which decides about the save."""
        return self._snapshot.rank == 0

    def replace(self, step: int) -> ReplacedError:
        """Tell the other ranks that a save for `step` replaces this save.

        Called on rank 0 instead of `run`.
        """
        self._posts.post("tag", replaced=step)
        self._posts.leave()
        return self._replaced_by(step)

    def was_replaced(self, deadline_s: float) -> bool:
        """Wait, on a rank above 0, for rank 0's decision. Return True if rank 0 has replaced the save.

        RuntimeError after `deadline_s` seconds.
        """
        try:
            return self._replaced.result(deadline_s)
        except TimeoutError as error:
            raise RuntimeError(
                f"saving {self._what}: rank 0 has neither begun nor replaced it for {deadline_s:g} seconds"
            ) from error

    def _replaced_by(self, step: int) -> ReplacedError:
        return ReplacedError(f"saving {self._what}: replaced by step {step} before it began")

    def abandon(self, why: str) -> None:
        """Tell the other ranks that this rank will not write. Called instead of `run`."""
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
            for name in {*self._names, *(part.name for part in ranges)}:
                self._held.hold(name, self._directory / temporary_name(name, self._tag))
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
        """Lock the directory and post the facts about the save (rank 0), or compare them (other ranks)."""
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
            # Rank 0 may just be late. Tell it of the failure, so that it does not use files that are about to
            # be removed.
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
        text = json.dumps(config, indent=4) + "\n"
        _C.replace_file(str(path), text)
        written = written_file(
            self._directory, _FSDP_CONFIG, self._tag, len(text.encode()), _C.crc32c(text.encode())
        )
        return [written, *write_huggingface_files(self._directory, self._tag, self._small_files)]

    def _rename(self, names: Iterable[str]) -> None:
        """Rename files durably to their final names, and report to rank 0."""
        try:
            for name in names:
                rename_into(self._directory, temporary_name(name, self._tag), name)
                self._held.check(name, self._directory / name)
            _C.sync_directory(str(self._directory))
            self._posts.post("renamed")
        except Exception as error:
            why = str(error)
            if isinstance(error, FileNotFoundError):
                why = (
                    "a temporary file is gone: a rank that had waited too long gave this save up, or "
                    f"something else removes files here: {error}"
                )
            self._posts.post("renamed", error=why)
            raise RuntimeError(why) from error

    def _remove_temporary(self) -> None:
        """Remove a failed save's temporary files.

        Every rank does so, because late ranks may write more files.
        """
        if self._tag:
            for path in temporary_files(self._directory, self._tag):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        for folder in {(self._directory / name).parent for name in self._names} - {self._directory}:
            with contextlib.suppress(OSError):  # fails if the folder has an earlier save's files
                folder.rmdir()


def tell_failure(exchange: StoreExchange, rank: int, why: str) -> None:
    """Tell the other ranks that this rank will not write, whichever post they wait for.

    why: the reason.
    """
    for kind in ("tag", "decision") if rank == 0 else ():
        exchange.post(kind, error=f"rank 0 failed: {why}")
    exchange.post("written", error=why)
    exchange.leave()


def _check_there(directory: Path, temporary: str, file: _C.FileDigest, world_size: int) -> None:
    """Raise RuntimeError unless this rank sees a file that another rank has written, in its full size."""
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
    """The commit of one save into `directory`, on rank 0. `close` releases the lock that `lock` takes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: set[str] = set()
        self._before: list[str] = []
        self._staged = directory
        self._lock: _C.RunLock | None = None

    def lock(self) -> None:
        """Lock the directory against other saves. ValueError, naming the other save, if it holds the lock."""
        check_free(self._directory, (MANIFEST, REPLACED_MANIFEST))
        try:
            self._lock = _C.RunLock(
                str(self._directory), "another save", "wait for it, or give every trainer its own directory"
            )
        except RuntimeError as error:  # the file system does not support locks
            _LOGGER.warning("%s; two saves into this directory at once would not be noticed", error)

    def close(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def stage(self, tag: str, snapshot: Snapshot, files: list[_C.FileDigest]) -> None:
        """Write the manifest durably under a temporary name, so that the commit needs no more disk space.

        The old manifest is removed. From then on, readers and monitors see an incomplete step. RuntimeError
        unless rank 0 sees all ranks' files.
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
        with contextlib.suppress(ValueError):  # the list in a damaged manifest is not reliable
            self._before = [file.name for file in _C.read_manifest(str(self._directory)).files]
        os.replace(path, self._directory / REPLACED_MANIFEST)
        _C.sync_directory(str(self._directory))

    def publish_manifest(self) -> None:
        """Rename the manifest to its final name, which completes the step.

        If readers would refuse the step, remove the manifest and raise RuntimeError.
        """
        self._remove_outdated()
        os.replace(self._staged, self._directory / MANIFEST)
        faults = problems(self._directory)
        if faults:
            (self._directory / MANIFEST).unlink()
            raise RuntimeError(f"readers would refuse it: {some(faults, '; ')}; move it away and save again")
        _C.sync_directory(str(self._directory))
        removed((self._directory / REPLACED_MANIFEST).unlink, self._directory / REPLACED_MANIFEST)

    def _remove_outdated(self) -> None:
        """Remove earlier saves' files that loaders could take for this save's.

        Other programs' files are renamed instead.
        """
        there = [path.name for path in self._directory.iterdir() if path.is_file()]
        weights = [name for name in there if any(form.recognises([name]) for form in FORMATS.values())]
        begun = [name for name in there if name.startswith(TEMPORARY)]  # left by other saves
        ours = {*self._before, *begun} - self._names - {self._staged.name}
        for name in ours:
            removed(functools.partial(remove_file, self._directory, name), self._directory / name)
        for name in {*weights, _INDEX}.intersection(there) - ours - self._names:
            removed(functools.partial(self._move_aside, name), self._directory / name)

    def _move_aside(self, name: str) -> None:
        """Rename a weight file that is in no manifest to `<name>.aside`.

        It may belong to another program, or to a save that was killed while it renamed its files.
        """
        targets = (f"{name}.aside{number}" for number in ("", *(f"-{count}" for count in range(2, 1000))))
        target = next(candidate for candidate in targets if not (self._directory / candidate).exists())
        os.rename(self._directory / name, self._directory / target)
        _LOGGER.warning("%s: no save lists %s; it is called %s now", self._directory, name, target)
