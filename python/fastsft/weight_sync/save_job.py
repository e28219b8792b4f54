"""Writing a snapshot and committing it: all ranks or none, the manifest last."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from fastsft import _C
from fastsft.model.model_save import digest_tuple, joined_digests, range_tuple
from fastsft.weight_sync.agreement import other_model
from fastsft.weight_sync.commit import Commit
from fastsft.weight_sync.errors import ReplacedError
from fastsft.weight_sync.exchange import StoreExchange
from fastsft.weight_sync.files import (
    rename_into,
    temporary_files,
    temporary_name,
    write_huggingface_files,
    written_file,
)
from fastsft.weight_sync.formats import SaveFormat
from fastsft.weight_sync.held_files import HeldFiles
from fastsft.weight_sync.interfaces import Message
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
        self._commit, self._held = Commit(directory), HeldFiles()
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
            self._held.close()
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
            for name in {*self._names, *(each.name for each in ranges)}:
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
        text = json.dumps(config, indent=4) + "\n"
        _C.replace_file(str(path), text)
        written = written_file(
            self._directory, _FSDP_CONFIG, self._tag, len(text.encode()), _C.crc32c(text.encode())
        )
        return [written, *write_huggingface_files(self._directory, self._tag, self._small_files)]

    def _rename(self, names: Iterable[str]) -> None:
        """Durable on return, and told to rank 0."""
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
