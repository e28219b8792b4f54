"""Writing a snapshot and committing it: all ranks or none, the manifest last."""

from __future__ import annotations

import contextlib
import json
import secrets
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fastsft.weight_sync.commit import Commit, rename_all
from fastsft.weight_sync.errors import ReplacedError
from fastsft.weight_sync.exchange import Verdicts
from fastsft.weight_sync.formats import SaveFormat, WrittenFile, temporary_name, written_file
from fastsft.weight_sync.huggingface_files import write_huggingface_files
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.staging import Snapshot
from fastsft.weight_sync.transfer_agreement import other_model

KINDS = {  # of what ranks post about one save: what those who wait for it do
    "tag": "waiting for rank 0 to begin", "written": "waiting for what ranks wrote",
    "decision": "waiting for rank 0's decision", "renamed": "waiting for ranks that rename",
    "done": "waiting for rank 0's manifest",
}  # fmt: skip
_FSDP_CONFIG = "fsdp_config.json"


class SaveJob:
    """One rank's share of a save; `run` is called on a background thread of every rank.

    Files are written under temporary names. Rank 0 waits for W reports, takes away the manifest of an earlier
    save, lets all ranks rename, and writes the manifest when all have. Any error: no manifest, no temporary
    files, and every rank raises the first failing rank's reason.
    """

    def __init__(
        self,
        directory: Path,
        snapshot: Snapshot,
        save_format: SaveFormat,
        verdicts: Verdicts,
        error: str | None,
        huggingface_files: dict[str, bytes],
        fsdp_version: int,
    ) -> None:
        self._directory, self._snapshot, self._format = directory, snapshot, save_format
        self._verdicts, self._error = verdicts, error
        self._huggingface_files, self._fsdp_version = huggingface_files, fsdp_version
        self._commit = Commit(directory)
        self._files: list[WrittenFile] = []
        self._tag = ""
        self._same_plan = True
        self._fate: Future[bool] = Future()  # whether rank 0 replaced it

    def run(self) -> None:
        """Returns when the step is durable on all ranks. RuntimeError when any rank failed or was silent."""
        try:
            self._write()
            if self._snapshot.rank == 0:
                self._lead()
            else:
                self._follow()
        except ReplacedError:
            raise
        except Exception as error:
            self._remove_temporary()
            raise RuntimeError(f"saving {self.what}: {error}") from error
        finally:
            if not self._fate.done():
                self._fate.set_result(False)
            self._commit.close()
            self._verdicts.leave()

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
        self._verdicts.post("tag", replaced=step)
        self._verdicts.leave()
        return self._replaced_by(step)

    def was_replaced(self, deadline_s: float) -> bool:
        """On another rank, once rank 0's word is here. RuntimeError when it does not come."""
        try:
            return self._fate.result(deadline_s)
        except TimeoutError as error:
            raise RuntimeError(
                f"saving {self.what}: rank 0 has neither begun nor replaced it for {deadline_s:g} seconds"
            ) from error

    def _replaced_by(self, step: int) -> ReplacedError:
        return ReplacedError(f"saving {self.what}: replaced by step {step} before it began")

    def abandon(self, why: str) -> None:
        """In place of `run`: tells the other ranks that this one will not write."""
        self._fate.set_result(False)
        tell_failure(self._verdicts, self._snapshot.rank, why)

    def _write(self) -> None:
        try:
            self._begin()
            if not self._same_plan:
                self._verdicts.post("written", plan=self._snapshot.plan.to_json())
                return
            if self._error is not None:
                raise ValueError(self._error)
            self._files = self._format.write(self._directory, self._tag, self._snapshot)
            if self._snapshot.rank == 0:
                self._files += self._write_small_files()
            self._verdicts.post("written", files=[file.as_json() for file in self._files])
        except ReplacedError:
            raise
        except Exception as error:
            if self._snapshot.rank == 0 and not self._tag:
                self._verdicts.post("tag", error=f"rank 0 failed: {error}")
            self._verdicts.post("written", error=str(error))

    def _begin(self) -> None:
        """Rank 0 says what it saves; the others, whether they save the same."""
        mine = {"step": self._snapshot.step, "format": self._format.name}
        if self._snapshot.rank == 0:
            self._commit.lock()
            self._tag = secrets.token_hex(8)
            self._verdicts.post("tag", tag=self._tag, hash=self._snapshot.plan.hash, **mine)
            return
        first = self._verdicts.collect("tag", [0])[0]
        self._fate.set_result("replaced" in first)
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
            reports = self._verdicts.collect("written", everyone)
            self._check_plans(reports)
            files = [WrittenFile(**file) for report in reports.values() for file in report["files"]]
            shared = self._commit.join_shared([file for file in files if file.shared])
            files = [file for file in files if not file.shared] + shared
            self._commit.check_present(files)
            self._commit.stage_manifest(self._tag, self._snapshot, files)
            self._commit.take_away_manifest()
        except Exception as error:
            self._verdicts.post("decision", error=str(error))
            raise
        self._verdicts.post("decision")
        try:
            self._rename([file for file in self._files if not file.shared] + shared)
            self._verdicts.collect("renamed", everyone)
            self._commit.publish_manifest()
        except Exception as error:
            self._verdicts.post("done", error=str(error))
            raise
        self._verdicts.post("done")

    def _follow(self) -> None:
        try:
            self._verdicts.collect("decision", [0])
        except RuntimeError as error:
            # Rank 0 may be late only, and must not go on with files that are about to be removed.
            with contextlib.suppress(RuntimeError):
                for kind in ("written", "renamed"):
                    self._verdicts.post(kind, error=str(error))
            raise
        self._rename([file for file in self._files if not file.shared])
        self._verdicts.collect("done", [0])

    def _check_plans(self, reports: dict[int, dict[str, Any]]) -> None:
        for rank, report in sorted(reports.items()):
            if "plan" in report:
                plan = SyncPlan.from_json(report["plan"])
                raise ValueError(other_model(self._snapshot.plan, plan, rank))

    def _write_small_files(self) -> list[WrittenFile]:
        from fastsft import _C

        config = {"FSDP_version": self._fsdp_version, "world_size": self._snapshot.world_size}
        path = self._directory / temporary_name(_FSDP_CONFIG, self._tag)
        _C.replace_file(str(path), json.dumps(config, indent=4) + "\n")
        written = written_file(self._directory, _FSDP_CONFIG, self._tag)
        return [written, *write_huggingface_files(self._directory, self._tag, self._huggingface_files)]

    def _rename(self, files: list[WrittenFile]) -> None:
        try:
            self._rename_files(files)
            self._verdicts.post("renamed")
        except Exception as error:
            self._verdicts.post("renamed", error=str(error))
            raise

    def _rename_files(self, files: list[WrittenFile]) -> None:
        try:
            rename_all(self._directory, files)
        except FileNotFoundError as error:
            raise RuntimeError(
                f"a rank gave this save up meanwhile, and removed what it had waited for too long: {error}"
            ) from error

    def _remove_temporary(self) -> None:
        """Of the whole save: it has failed, and whoever is late removes what came after the others had."""
        if self._tag:
            for path in self._directory.glob(temporary_name("*", self._tag)):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        for folder in {(self._directory / file.name).parent for file in self._files} - {self._directory}:
            with contextlib.suppress(OSError):  # it holds files of an earlier save
                folder.rmdir()


def tell_failure(verdicts: Verdicts, rank: int, why: str) -> None:
    """This rank will not write: the others hear it wherever they wait."""
    for kind in ("tag", "decision") if rank == 0 else ():
        verdicts.post(kind, error=f"rank 0 failed: {why}")
    verdicts.post("written", error=why)
    verdicts.leave()
