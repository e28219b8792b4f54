"""Which saved steps may go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from fastsft.weight_sync import layout

_TRASH = ".fastsft-trash-"
_OPTIMIZER = ("optim", "training_state")


def prune(job: Path, keep: int, leased: Collection[int]) -> list[int]:
    """See `CheckpointMonitor.prune`. ValueError when `keep` is less than 1: one complete step stays."""
    if keep < 1:
        raise ValueError(f"keep: expected 1 or more, got {keep}")
    for trash in job.glob(f"{_TRASH}global_step_*"):  # of a prune that was killed
        _discard(trash)
    steps = layout.step_directories(job)
    complete = [step for step, path in steps.items() if layout.is_complete(path)]
    if not complete:
        return []
    kept = set(complete[-keep:]) | set(leased)
    removed = [
        step
        for step, path in steps.items()
        if step < complete[-1]
        and step not in kept
        and not (path / layout.FULL_MARKER).exists()
        and _is_ours(path)
    ]
    for step in removed:
        _remove(steps[step])
    return removed


def _is_ours(step_directory: Path) -> bool:
    """Whether every part has, or had until a save replaced it, a manifest of fastsft: others' steps stay."""
    parts = layout.components(step_directory)
    return bool(parts) and all(
        (part / layout.MANIFEST).exists() or (part / layout.REPLACED_MANIFEST).exists() for part in parts
    )


def has_optimizer(step_directory: Path) -> bool:
    """Whether the manifests of the step list optimizer state: more than weights."""
    return all(
        any(name.startswith(_OPTIMIZER) for name in _listed(part))
        for part in layout.components(step_directory)
    )


def _listed(part: Path) -> list[str]:
    content = json.loads((part / layout.MANIFEST).read_text(encoding="utf-8"))
    return [str(file["name"]) for file in content["files"]]


def _remove(directory: Path) -> None:
    """Gone at once for readers, whatever happens while its files are removed."""
    trash = directory.with_name(f"{_TRASH}{directory.name}")
    directory.rename(trash)
    _discard(trash)


def _discard(trash: Path) -> None:
    """Of a link only the link: what it leads to lies elsewhere, and is somebody's."""
    if trash.is_symlink():
        trash.unlink()
    else:
        shutil.rmtree(trash)
