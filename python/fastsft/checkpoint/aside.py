"""Checkpoints that a run does not go on from get other names; those that fastsft did not write stay."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from fastsft.ranks.agreement import Agreement
from fastsft.runtime.file_calls import removed
from fastsft.runtime.terminal import say


def put_checkpoints_aside(output_dir: str | Path, source: str | Path | None = None) -> None:
    """Rename every checkpoint-<step> of `output_dir` to previous-<UTC time>-checkpoint-<step>; collective.

    For a run that starts from step 0: earlier ones would count in its rotation and be taken by the next
    resume. Nothing is deleted; rank 0 prints one line when there were any. Of a link the link is renamed.
    What another program wrote is left as it is. ValueError before anything is renamed when the model that the
    run begins with, `source`, is in one of them.
    """
    agreement = Agreement(f"putting the checkpoints of {output_dir} aside")
    agreement.attempt_on_first(lambda: _put_aside(Path(output_dir), "--no_resume", lambda name: True, source))
    agreement.settle(None)


def put_abandoned_aside(
    output_dir: str | Path, checkpoint: str | Path | None, source: str | Path | None = None
) -> None:
    """The same of those that a run from `checkpoint` does not go on from; collective.

    Those of later steps, or all of them where `checkpoint` is None (the run starts from step 0) or not one of
    `output_dir`: the next automatic resume would take one of them for the end of this run.
    """
    agreement = Agreement(f"putting checkpoints of {output_dir} aside")
    agreement.attempt_on_first(lambda: _put_abandoned_aside(Path(output_dir), checkpoint, source))
    agreement.settle(None)


def _put_abandoned_aside(output_dir: Path, checkpoint: str | Path | None, source: str | Path | None) -> None:
    # The path itself, not where a link of that name leads.
    path = Path(os.path.abspath(checkpoint or ""))
    own = checkpoint is not None and path.parent.resolve() == output_dir.resolve()
    step = _step_of(path.name) if own else None
    why = "starting from step 0" if checkpoint is None else f"going on from {checkpoint}"

    def is_abandoned(name: str) -> bool:
        return step is None or (_step_of(name) or 0) > step

    _put_aside(output_dir, why, is_abandoned, source)


def _step_of(name: str) -> int | None:
    """Of `checkpoint-<step>`; None for other names."""
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == "checkpoint" and number.isdigit() else None


def _put_aside(
    output_dir: Path, why: str, is_meant: Callable[[str], bool], source: str | Path | None
) -> None:
    from fastsft import _C

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
    """False, with a line, for one that is protected."""
    return removed(lambda: path.rename(target), path)


def _is_ours(path: Path) -> bool:
    """A checkpoint of fastsft, or a link to one."""
    from fastsft import _C

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
