"""Ranks that torchrun starts again go on from what their own job has saved (`--max-restarts`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.checkpoint.checkpoint import newest_checkpoint
from fastsft.ranks.torchrun_job import starts_of_job
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments


def go_on_after_restart(args: TrainingArguments) -> None:
    """Ignore --no_resume and --resume_from_checkpoint if this job has a checkpoint of its own. Collective.

    They say how a job begins. Where torchrun started its ranks again, and `output_dir` has a checkpoint of
    the same job that can be resumed, `args` lose them, with a line: the run resumes as without them. Other
    runs' checkpoints do not count.
    """
    named = isinstance(args.resume_from_checkpoint, str)
    if not named and not args.no_resume:
        return
    starts = starts_of_job()
    found = newest_checkpoint(args.output_dir or ".", restarts=starts) if starts else None
    if found is None:
        return
    flag = f"--resume_from_checkpoint {args.resume_from_checkpoint}" if named else "--no_resume True"
    tell(
        f"torchrun started the ranks again: {flag} was for the first start of this job, which goes on from "
        f"{found}, its own"
    )
    args.resume_from_checkpoint, args.no_resume = None, False
