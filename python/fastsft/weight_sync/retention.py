"""Retention policy for saved steps."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path

from fastsft.weight_sync import layout
from fastsft.weight_sync.written_steps import remove_written, what_was_written

_TRASH = ".fastsft-trash-"
_OPTIMIZER = ("optim", "training_state")
_LOGGER = logging.getLogger(__name__)


def prune(job: Path, keep: int, leased: Collection[int]) -> list[int]:
    """See `CheckpointMonitor.prune`. ValueError when `keep` is less than 1: one complete step stays."""
    if keep < 1:
        raise ValueError(f"keep: expected 1 or more, got {keep}")
    for trash in sorted(job.glob(f"{_TRASH}global_step_*")):  # of a prune that was killed
        if (written := what_was_written(trash, half_removed=True)) is not None:
            _discard(trash, written)
    steps = layout.step_directories(job)
    complete = [step for step, path in steps.items() if layout.is_complete(path)]
    if not complete:
        return []
    kept = set(complete[-keep:]) | set(leased)
    old = [
        step
        for step, path in steps.items()
        if step < complete[-1] and step not in kept and not (path / layout.FULL_MARKER).exists()
    ]
    return [step for step in old if _remove(steps[step])]


def has_optimizer(step_directory: Path) -> bool:
    """True if the manifests of the step list optimizer state: more than weights."""
    return all(
        any(name.startswith(_OPTIMIZER) for name in _listed(part))
        for part in layout.components(step_directory)
    )


def _listed(part: Path) -> list[str]:
    content = json.loads((part / layout.MANIFEST).read_text(encoding="utf-8"))
    return [str(file["name"]) for file in content["files"]]


def _remove(directory: Path) -> bool:
    """Gone at once for readers, whatever happens while its files are removed. False where it is not ours."""
    written = what_was_written(directory)
    if written is None:
        return False
    trash = directory.with_name(f"{_TRASH}{directory.name}")
    if trash.is_symlink() or trash.exists():  # of somebody else: ours are gone by now
        _LOGGER.warning("%s: expected nothing of this name; move it away: %s stays", trash, directory.name)
        return False
    directory.rename(trash)
    _discard(trash, written)
    return True


def _discard(trash: Path, written: list[str]) -> None:
    """Files of others stay, in a step directory that has no manifest any more."""
    left = remove_written(trash, written)
    if not left:
        return
    directory = trash.with_name(trash.name.removeprefix(_TRASH))
    if not (directory.is_symlink() or directory.exists()):
        trash = trash.rename(directory)
    remove_written(trash, written, with_manifests=True)
    _LOGGER.warning(
        "%s: the step was removed, but not what fastsft did not write: %s", trash, ", ".join(left[:5])
    )
