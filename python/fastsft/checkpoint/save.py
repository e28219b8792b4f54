"""A checkpoint save on one rank: the rank's part, the report to rank 0, and on rank 0 the commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastsft import _C
from fastsft.checkpoint.content import CheckpointContent, commit_checkpoint, explain
from fastsft.model.model_save import FileReport, RangeReport, digest_tuple, joined_digests, range_tuple
from fastsft.ranks.exchange import SilentRankError, StoreExchange, StoreGoneError
from fastsft.ranks.launcher_watch import launcher_is_gone
from fastsft.ranks.timed_store import SilentStoreError
from fastsft.runtime.launch import launch

_SILENCE_S = 30.0  # time without a sign of life before a writing rank counts as lost [s]
# Errors of a store that is stuck or gone (torchrun's store ends with torchrun). The reports are then
# exchanged through the training process group.
_STORE_ERRORS = (StoreGoneError, SilentStoreError)

T = TypeVar("T")


@dataclass
class Report:
    """The outcome of one rank's part in a save. user: True if the user can fix the `error`."""

    files: list[FileReport] = field(default_factory=list)
    ranges: list[RangeReport] = field(default_factory=list)
    error: str | None = None
    user: bool = False

    def blame(self, error: Exception) -> None:
        """Record that the rank's part has failed with `error`."""
        self.error, self.user = str(error) or type(error).__name__, isinstance(error, ValueError)


class ReportExchange(StoreExchange):
    """The exchange of one save's reports, which all ranks post and rank 0 collects.

    All ranks must construct their exchanges in the same order. The reports go through the store, because
    background threads must not take part in collectives.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__("save of a run", {"report": "saving"}, rank, world_size, _SILENCE_S)

    def reports(self) -> list[Report]:
        """Return the reports of all ranks.

        RuntimeError if a rank is silent for 30 s, or if `give_up_in` ends the wait.
        """
        try:
            return [Report(**post) for post in self.collect_patiently("report")]
        except SilentRankError as error:
            raise RuntimeError(
                f"rank {error.ranks[0]} has not reported its part; it died or is stuck"
            ) from error

    def leave(self) -> None:
        if not launcher_is_gone():
            super().leave()

    def _check_presence(self, kind: str) -> None:
        pass  # rank 0 alone decides about a save, and may be suspended for any length of time

    def _ask(self, kind: str, work: Callable[[Any], T], end: float) -> T:
        if self._world_size > 1 and launcher_is_gone():  # the store would log a backtrace
            raise StoreGoneError("the launcher is gone")
        return super()._ask(kind, work, end)


class Part(Protocol):
    """This rank's part of a checkpoint: a staged copy of its state, or the live state."""

    def write(
        self, directory: str, *, dtype: str, max_shard_size: int, with_model: bool, with_state: bool
    ) -> tuple[list[_C.FileDigest], list[_C.RangeDigest]]:
        """Write the part. Return digests of files, and of ranges in files that several ranks write."""


class LivePart:
    """This rank's live state in the engine, which must not change while it is written."""

    def __init__(self, engine: _C.Engine) -> None:
        self._engine = engine

    def write(
        self, directory: str, *, dtype: str, max_shard_size: int, with_model: bool, with_state: bool
    ) -> tuple[list[_C.FileDigest], list[_C.RangeDigest]]:
        return _C.write_part(
            self._engine, directory, dtype=dtype, max_shard_size=max_shard_size, with_model=with_model,
            with_state=with_state,
        )  # fmt: skip


class CheckpointSave:
    """The save of this rank's part of the checkpoint `target` into the temporary directory `path`.

    directory: the AtomicDirectory on rank 0; None on other ranks. content: the small files. part: the state
    to write. limit: save_total_limit; 0 keeps all checkpoints. needed: size of the whole checkpoint [bytes].
    streamed: digests, on rank 0, of model files that are already written; None if each rank writes its part
    of the model files.
    """

    def __init__(
        self,
        target: Path,
        path: str,
        directory: _C.AtomicDirectory | None,
        content: CheckpointContent,
        part: Part,
        limit: int,
        needed: int,
        *,
        streamed: list[_C.FileDigest] | None,
    ) -> None:
        self.target, self._path, self._directory = target, path, directory
        self._content, self._part, self._limit, self._streamed = content, part, limit, streamed
        self._rank, self._needed = launch().rank, needed
        self._exchange = ReportExchange(self._rank, launch().world_size)
        self.failure: Exception | None = None  # this rank's error
        self.verdict: Report | None = None  # rank 0: first report with an error, or an empty report
        self.report = Report()  # this rank's report
        self.is_stranded = False  # True if the store for the reports is gone
        self._thread = threading.Thread(target=self._run, name="fastsft-save", daemon=True)

    def start(self) -> None:
        """Write on a background thread. If the system refuses a new thread, write now."""
        try:
            self._thread.start()
        except RuntimeError:
            self._run()

    def run_here(self) -> None:
        """Write now, on the calling thread."""
        self._run()

    def done(self) -> bool:
        """True if waiting has no use any more: rank 0 has a verdict, or the store is gone."""
        return self.verdict is not None or self.is_stranded

    def join(self, timeout: float | None = None) -> None:
        """Wait until the background thread has ended, or for `timeout` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def give_up_in(self, seconds: float) -> None:
        """Wait at most `seconds` more for the reports of other ranks."""
        self._exchange.give_up_in(seconds)

    def _run(self) -> None:
        try:
            with self._exchange.alive():
                self._write(self.report)
        except Exception as error:
            self.failure = explain(error, self._path, self._needed)
            self.report.blame(self.failure)
        try:
            self._exchange.post("report", **asdict(self.report))
            if self._rank == 0:
                self.verdict = self._conclude(self._exchange.reports())
        except _STORE_ERRORS:
            self.is_stranded = True
        except Exception as error:
            self.failure = self.failure or error
            if self._rank == 0:
                self.verdict = Report()
                self.verdict.blame(error)
        finally:
            self._exchange.leave()
            if self._directory is not None and not self.is_stranded:
                self._directory.discard()

    def conclude(self, reports: list[Report]) -> None:
        """Commit on rank 0, with reports that were gathered through the training process group."""
        try:
            self.verdict = self._conclude(reports)
        except Exception as error:
            self.failure, self.verdict = error, Report()
            self.verdict.blame(error)
        finally:
            if self._directory is not None:
                self._directory.discard()

    def _write(self, report: Report) -> None:
        form = self._content.form
        files, ranges = self._part.write(
            self._path,
            dtype=form.dtype,
            max_shard_size=form.max_shard_size,
            with_model=self._streamed is None,
            with_state=self._content.with_state,
        )
        files = [*(self._streamed or []), *files, *self._content.write_random_state(self._path, self._rank)]
        if self._rank == 0:
            files += self._content.write_run_files(self._path)
        report.files = [digest_tuple(item) for item in files]
        report.ranges = [range_tuple(item) for item in ranges]

    def _conclude(self, reports: list[Report]) -> Report:
        """Commit if all ranks have written their parts. Return the first failure, or an empty report."""
        for rank, report in enumerate(reports):
            if report.error is not None:
                at = f"rank {rank} failed: " if len(reports) > 1 else ""
                return Report(error=f"saving {self.target}: {at}{report.error}", user=report.user)
        commit_checkpoint(
            self._directory,
            self.target,
            self._content,
            joined_digests((report.files, report.ranges) for report in reports),
            self._limit,
        )
        return Report()
