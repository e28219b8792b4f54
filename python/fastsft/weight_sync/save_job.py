"""Writing a snapshot and committing it: all ranks or none, the manifest last."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from fastsft.weight_sync.formats import (
    TEMPORARY,
    SaveFormat,
    WrittenFile,
    save_formats,
    temporary_name,
    written_file,
)
from fastsft.weight_sync.huggingface_files import write_huggingface_files
from fastsft.weight_sync.layout import MANIFEST
from fastsft.weight_sync.staging import Snapshot
from fastsft.weight_sync.verdicts import Verdicts

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
        self._files: list[WrittenFile] = []
        self._tag = ""

    def run(self) -> None:
        """Returns when the step is durable on all ranks. RuntimeError when any rank failed or was silent."""
        try:
            self._write()
            if self._snapshot.rank == 0:
                self._commit()
            else:
                self._follow()
        except Exception as error:
            where = f"saving step {self._snapshot.step} to {self._directory}"
            raise RuntimeError(f"{where}: {error}") from error
        finally:
            self._remove_temporary()

    def abandon(self, why: str) -> None:
        """In place of `run`: tells the other ranks that this one will not write."""
        for kind in ("tag", "decision") if self._snapshot.rank == 0 else ():
            self._verdicts.post(kind, error=f"rank 0 failed: {why}")
        self._verdicts.post("written", error=why)

    def _write(self) -> None:
        try:
            if self._snapshot.rank == 0:
                self._verdicts.post("tag", tag=secrets.token_hex(8))
            self._tag = str(self._verdicts.collect("tag", [0])[0]["tag"])
            if self._error is not None:
                raise ValueError(self._error)
            self._files = self._format.write(self._directory, self._tag, self._snapshot)
            if self._snapshot.rank == 0:
                self._files.append(self._write_fsdp_config())
            self._verdicts.post("written", files=[file.as_json() for file in self._files])
        except Exception as error:
            self._verdicts.post("written", error=str(error))

    def _commit(self) -> None:
        from fastsft import _C

        everyone = range(self._snapshot.world_size)
        try:
            reports = self._verdicts.collect("written", everyone)
            files = [WrittenFile(**file) for report in reports.values() for file in report["files"]]
            shared = self._join_shared([file for file in files if file.shared])
            before = self._take_away_manifest()
        except Exception as error:
            self._verdicts.post("decision", error=str(error))
            raise
        self._verdicts.post("decision")
        try:
            # Durable before the manifest, which lists plain names only and so not these.
            write_huggingface_files(self._directory, self._huggingface_files)
            self._rename([file for file in self._files if not file.shared] + shared)
            self._verdicts.collect("renamed", everyone)
            digests = [file for file in files if not file.shared] + shared
            self._remove_outdated(before, {file.name for file in digests})
            manifest = _C.Manifest(
                self._snapshot.step,
                self._snapshot.world_size,
                self._snapshot.plan.hash,
                [_C.FileDigest(file.name, file.size, file.crc32c) for file in digests],
            )
            _C.replace_file(str(self._directory / MANIFEST), manifest.json())
        except Exception as error:
            self._verdicts.post("done", error=str(error))
            raise
        self._verdicts.post("done")

    def _follow(self) -> None:
        self._verdicts.collect("decision", [0])
        self._rename([file for file in self._files if not file.shared])
        self._verdicts.collect("done", [0])

    def _write_fsdp_config(self) -> WrittenFile:
        from fastsft import _C

        config = {"FSDP_version": self._fsdp_version, "world_size": self._snapshot.world_size}
        path = self._directory / temporary_name(_FSDP_CONFIG, self._tag)
        _C.replace_file(str(path), _json(config))
        return written_file(self._directory, _FSDP_CONFIG, self._tag)

    def _join_shared(self, files: list[WrittenFile]) -> list[WrittenFile]:
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

    def _take_away_manifest(self) -> list[str]:
        """From here on the directory is incomplete for readers. Returns what the manifest listed."""
        from fastsft import _C

        path = self._directory / MANIFEST
        if not path.exists():
            return []
        names: list[str] = []
        with contextlib.suppress(ValueError):  # a damaged one lists nothing that could be relied on
            names = [file.name for file in _C.read_manifest(str(self._directory)).files]
        path.unlink()
        _C.sync_directory(str(self._directory))
        return names

    def _rename(self, files: list[WrittenFile]) -> None:
        from fastsft import _C

        try:
            for file in files:
                os.replace(self._directory / file.temporary, self._directory / file.name)
            _C.sync_directory(str(self._directory))
            self._verdicts.post("renamed")
        except Exception as error:
            self._verdicts.post("renamed", error=str(error))
            raise

    def _remove_outdated(self, before: list[str], now: set[str]) -> None:
        """Files of an earlier save, also of one killed before its manifest: loaders could take them."""
        there = [path.name for path in self._directory.iterdir() if path.is_file()]
        weights = [name for name in there if any(each.recognises([name]) for each in save_formats().values())]
        begun = [name for name in there if name.startswith(TEMPORARY)]  # this save has renamed its own
        for name in {*before, *weights, *begun} - now:
            (self._directory / name).unlink(missing_ok=True)

    def _remove_temporary(self) -> None:
        if not self._tag:
            return
        for path in self._directory.glob(temporary_name("*", self._tag)):
            if self._snapshot.rank == 0 or any(path.name == file.temporary for file in self._own_files()):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _own_files(self) -> list[WrittenFile]:
        return [file for file in self._files if not file.shared]


def _json(content: dict[str, Any]) -> str:
    import json

    return json.dumps(content, indent=4) + "\n"
