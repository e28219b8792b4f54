"""One save of a checkpoint on one rank: its part, its report, and on rank 0 the commit."""

from __future__ import annotations

import errno
import re
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastsft import _C
from fastsft.checkpoint.content import CheckpointContent
from fastsft.checkpoint.save_reports import STORE_ERRORS, Deadline, Report, ReportBox
from fastsft.model.directory import digest_tuple, joined_digests, range_tuple, recover_directory
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.run_lock import check_still_held
from fastsft.ranks.save_place import writes_small_files
from fastsft.runtime.file_calls import warn_unremoved
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = ("bytes are free", "`ulimit -f`", "your quota")  # of the errors that say so


class Part(Protocol):
    """This rank's part of a checkpoint: a staged copy, or the state itself."""

    def write(
        self, directory: str, *, dtype: str, max_shard_size: int, with_model: bool, with_state: bool
    ) -> tuple[list[_C.FileDigest], list[_C.RangeDigest]]:
        """Write it. Digests of whole files, and of ranges of others."""


class LivePart:
    """This rank's part as it is in the engine, which must not change while it is written."""

    def __init__(self, engine: _C.Engine) -> None:
        self._engine = engine

    def write(
        self, directory: str, *, dtype: str, max_shard_size: int, with_model: bool, with_state: bool
    ) -> tuple[list[_C.FileDigest], list[_C.RangeDigest]]:
        """As CheckpointStaging."""
        return _C.write_part(
            self._engine, directory, dtype=dtype, max_shard_size=max_shard_size, with_model=with_model,
            with_state=with_state,
        )  # fmt: skip


class CheckpointSave:
    """Writes this rank's part of `target` into the temporary directory `path`, in a thread of its own.

    part: a staged copy or the state itself, by its `write`. directory: the AtomicDirectory on rank 0, None
    elsewhere. limit: save_total_limit, 0 keeps all. needed: bytes of the checkpoint. streamed: digests (on
    rank 0) of model files that are written already, None when each rank writes its part of them.
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
        self._box = ReportBox(self._rank, launch().world_size)
        self._deadline = Deadline()
        self.failure: Exception | None = None  # this rank's own
        self.verdict: Report | None = None  # on rank 0: the first report that has an error, or an empty one
        self.report = Report()  # this rank's
        self.is_stranded = False  # the store that reports travel through is gone
        self._thread = threading.Thread(target=self._run, name="fastsft-save", daemon=True)

    def start(self) -> None:
        """Write in the background; before the training goes on where the system gives no thread."""
        try:
            self._thread.start()
        except RuntimeError:
            self._run()

    def run_here(self) -> None:
        """Write now, on this thread; in one of its own only what cannot be interrupted."""
        self._run()

    def done(self) -> bool:
        """On rank 0: whether the checkpoint is there, or has failed. Or nobody can be told of it."""
        return self.verdict is not None or self.is_stranded

    def join(self, timeout: float | None = None) -> None:
        """Until this rank has nothing more to do for it."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def give_up_in(self, seconds: float) -> None:
        """Do not wait longer than that for the reports of other ranks."""
        self._deadline.set(seconds)

    def _run(self) -> None:
        report = self.report
        try:
            with self._box.at_work():
                self._write(report)
        except Exception as error:
            self.failure = explain(error, self._path, self._needed)
            report.blame(self.failure)
        try:
            self._box.post(report)
            if self._rank == 0:
                self.verdict = self._conclude(self._box.collect(self._deadline))
        except STORE_ERRORS:
            self.is_stranded = True
        except Exception as error:
            self.failure = self.failure or error
            if self._rank == 0:
                self.verdict = Report()
                self.verdict.blame(error)
        finally:
            if self._directory is not None and not self.is_stranded:
                self._directory.discard()

    def conclude(self, reports: list[Report]) -> None:
        """The rest, on rank 0, where the ranks have handed over their reports in another way."""
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
        """Commit when all ranks have written; the first failure otherwise."""
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


def explain(error: Exception, path: str, needed: int) -> Exception:
    """Errors of no room with path and bytes needed, of a full disk also those free; others as they are."""
    full = isinstance(error, OSError) and error.errno in _FULL
    if not full and not (isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)):
        return error
    is_disk = isinstance(error, OSError) and error.errno == errno.ENOSPC
    is_told = any(word in str(error) for word in _WORDS)
    free = f", {_C.available_bytes(path)} bytes are free there" if is_disk and not is_told else ""
    return _C.FileError(f"{error}{free} (in all the save needs {needed} bytes)")


_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


def check_complete(content: CheckpointContent, names: Collection[str]) -> None:
    """RuntimeError unless `names` have the weights, the optimizer state if it is to be there, and all parts.

    The last thing that is asked before older checkpoints go.
    """
    weights = "adapter_model" if content.adapter is not None else "model"
    missing = [] if _has(weights, names) else [f"{weights}.safetensors"]
    if content.with_state and not _has("optimizer-rank", names):
        missing.append("optimizer-rank-*.safetensors")
    parts = Counter((part[1], int(part[3])) for part in map(_NUMBERED.fullmatch, names) if part)
    missing += [f"{of - found} of {of} files {stem}-*" for (stem, of), found in parts.items() if found != of]
    if missing:
        raise RuntimeError(
            f"the checkpoint lacks {', '.join(missing)}, which no rank has written; it is not "
            "kept, and the older ones stay"
        )


def _has(stem: str, names: Collection[str]) -> bool:
    return any(re.fullmatch(rf"{stem}(-\d{{5}}-of-\d{{5}})?\.safetensors", name) for name in names)


def commit_checkpoint(
    directory: _C.AtomicDirectory | None,
    target: Path,
    content: CheckpointContent,
    files: list[_C.FileDigest],
    limit: int,
) -> None:
    """Make the directory the checkpoint `target`, then remove older ones above `limit` (0 keeps all)."""
    assert directory is not None  # of the rank that commits
    check_complete(content, [file.name for file in files])
    manifest = _C.Manifest(content.step, content.world_size, content.layout, files)
    check_still_held(target.parent)
    directory.commit(target.name, manifest)
    if directory.kept:
        tell(f"what fastsft did not write in {target} is now in {directory.kept}")
    rotate(target.parent, limit, [content.best, target.name, content.source])


def recover(folder: Path) -> None:
    """Finish or remove what earlier saves left in `folder`, which is made where it is not there."""
    check_still_held(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in recover_directory(folder):
        tell(f"removed {folder / name}, left by an interrupted save")


def rotate_what_is_left(args: TrainingArguments, output_dir: Path, kept: list[str]) -> None:
    """Remove the checkpoints that an earlier start had still to remove; collective."""
    agreement = Agreement(f"removing checkpoints of {output_dir} above --save_total_limit")
    agreement.attempt_if(
        writes_small_files(args), lambda: rotate(output_dir, args.save_total_limit or 0, kept)
    )
    agreement.settle(None)


def rotate(output_dir: Path, limit: int, kept: list[str]) -> None:
    """Remove older checkpoints of `output_dir` above `limit` (0 keeps all), but those of the names `kept`.

    One that cannot be removed keeps its name, on top of the limit, with a line.
    """
    unremoved: list[str] = []
    for name, aside in _C.rotate_checkpoints(str(output_dir), limit, kept, unremoved).items():
        if aside:
            tell(f"{output_dir / name} is removed; what fastsft did not write there is now in {aside}")
    warn_unremoved(unremoved)
