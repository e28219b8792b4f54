"""Preparations before a run starts in an output directory.

They restore the chat template's date, make a run that torchrun has restarted resume, and archive the
checkpoints that the run does not continue.
"""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fastsft import _C
from fastsft.checkpoint.finished_run import RECORD_NAME
from fastsft.checkpoint.load import newest_checkpoint
from fastsft.checkpoint.run_identity import STATE_NAME
from fastsft.checkpoint.state_files import MOST_STATE_BYTES
from fastsft.data.chat.labelling import DATE
from fastsft.ranks.exchange import on_rank0
from fastsft.ranks.torchrun_job import starts_of_job
from fastsft.runtime.file_calls import removed
from fastsft.runtime.messages import tell
from fastsft.runtime.regular_files import read_json
from fastsft.runtime.terminal import say

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

T = TypeVar("T")


def restore_template_date(data_args: T, args: TrainingArguments) -> T:
    """Return data arguments with the date that the resumed run used in its chat template. Collective.

    The result is a copy, or `data_args` itself if it has a date, if no run is resumed, or if the template
    used no date.
    """
    if getattr(data_args, DATE, None) is not None or args.no_resume:
        return data_args
    day = on_rank0("reading when the run was begun", lambda: _first_day(args))
    if not day:
        return data_args
    dated = copy.copy(data_args)
    setattr(dated, DATE, day)
    return dated


def _first_day(args: TrainingArguments) -> str:
    for path in _records(args):
        try:
            content = read_json(path, MOST_STATE_BYTES)
            request = content.get("request", content)
            return date.fromisoformat(request[DATE]).isoformat()
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue  # verification will report the checkpoint's faults
    return ""


def _records(args: TrainingArguments) -> Iterator[Path]:
    """Yield the files that may contain the date, the newest first."""
    named, folder = args.resume_from_checkpoint, Path(args.output_dir or ".")
    if isinstance(named, str):
        yield Path(named) / STATE_NAME
    elif folder.is_dir():
        yield from (folder / name / STATE_NAME for name in reversed(_C.list_checkpoints(str(folder))))
        yield folder / RECORD_NAME


def resume_after_torchrun_restart(args: TrainingArguments) -> None:
    """Make a run resume if torchrun has restarted its ranks. Collective.

    --no_resume and --resume_from_checkpoint apply to the first start of a torchrun job. If the ranks were
    restarted, and `output_dir` has a checkpoint of the same job that can be resumed, both flags are reset in
    `args`, with a message. Checkpoints of other runs do not count.
    """
    named = isinstance(args.resume_from_checkpoint, str)
    if not named and not args.no_resume:
        return
    starts = starts_of_job()
    checkpoint = newest_checkpoint(args.output_dir or ".", restarts=starts) if starts else None
    if checkpoint is None:
        return
    flag = f"--resume_from_checkpoint {args.resume_from_checkpoint}" if named else "--no_resume True"
    tell(
        f"torchrun started the ranks again: {flag} was for the first start of this job, which goes on from "
        f"{checkpoint}, its own"
    )
    args.resume_from_checkpoint, args.no_resume = None, False


def archive_checkpoints(output_dir: str | Path, source: str | Path | None = None) -> None:
    """Rename every checkpoint-<step> of `output_dir` to previous-<UTC time>-checkpoint-<step>. Collective.

    Called for a run that starts from step 0, whose rotation would otherwise count the old checkpoints, and
    whose next resume would use one of them. Nothing is deleted; rank 0 prints a message about renamed
    checkpoints. A symbolic link is renamed itself, and not its target. Directories of other programs keep
    their names. source: directory of the model with which the run begins. ValueError, before anything is
    renamed, if `source` is inside a checkpoint.
    """
    what = f"putting the checkpoints of {output_dir} aside"
    on_rank0(what, lambda: _archive(Path(output_dir), "--no_resume", lambda name: True, source))


def archive_abandoned(
    output_dir: str | Path, checkpoint: str | Path | None, source: str | Path | None = None
) -> None:
    """Archive the checkpoints that a run from `checkpoint` does not continue. Collective.

    They are renamed as in `archive_checkpoints`, because the next automatic resume could use them instead of
    this run's checkpoints. If the run resumes from a checkpoint in `output_dir`, checkpoints of later steps
    are archived. If `checkpoint` is None (start from step 0) or outside `output_dir`, all are archived.
    """
    what = f"putting checkpoints of {output_dir} aside"
    on_rank0(what, lambda: _archive_abandoned(Path(output_dir), checkpoint, source))


def _archive_abandoned(output_dir: Path, checkpoint: str | Path | None, source: str | Path | None) -> None:
    # abspath instead of resolve, because the link's path matters and not its target's.
    path = Path(os.path.abspath(checkpoint or ""))
    own = checkpoint is not None and path.parent.resolve() == output_dir.resolve()
    step = _step_of(path.name) if own else None
    why = "starting from step 0" if checkpoint is None else f"going on from {checkpoint}"

    def is_abandoned(name: str) -> bool:
        return step is None or (_step_of(name) or 0) > step

    _archive(output_dir, why, is_abandoned, source)


def _step_of(name: str) -> int | None:
    """Return the step in the name `checkpoint-<step>`; None for other names."""
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == "checkpoint" and number.isdigit() else None


def _archive(output_dir: Path, why: str, is_meant: Callable[[str], bool], source: str | Path | None) -> None:
    there = _C.list_checkpoints(str(output_dir), links=True) if output_dir.is_dir() else []
    names = [name for name in there if is_meant(name) and _is_ours(output_dir / name)]
    if not names:
        return
    _check_source(output_dir, why, names, source)
    stamp = time.strftime("previous-%Y%m%dT%H%M%SZ", time.gmtime())
    tries = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    prefix = next(name for name in tries if not list(output_dir.glob(f"{name}-checkpoint-*")))
    moved = [name for name in names if _rename(output_dir / name, output_dir / f"{prefix}-{name}")]
    if moved:
        _C.sync_directory(str(output_dir))
        say(f"{why}: {', '.join(moved)} in {output_dir} are now called {prefix}-*")


def _rename(path: Path, target: Path) -> bool:
    """Rename a checkpoint. If it is protected, print a message and return False."""
    return removed(lambda: path.rename(target), path)


def _is_ours(path: Path) -> bool:
    """True for a fastsft checkpoint, or a link to a fastsft checkpoint."""
    return bool(_C.holds_manifest(os.path.realpath(path)))


def _check_source(output_dir: Path, why: str, names: list[str], source: str | Path | None) -> None:
    if source is None:
        return
    inside = Path(source).resolve()
    for name in names:
        place = (output_dir / name).resolve()
        if inside == place or place in inside.parents:
            raise ValueError(
                f"{source}: the model that the run begins with is in {output_dir / name}, a checkpoint of "
                f"--output_dir that would get another name ({why}); copy or rename it first (mv "
                f"{output_dir / name} {output_dir / 'base'}), or choose another --output_dir"
            )
