"""The files of a step directory that are fastsft's: those that its manifests list, and its own small ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from fastsft.weight_sync import layout
from fastsft.weight_sync.formats import TEMPORARY, temporary_name

_MANIFESTS = (layout.MANIFEST, layout.REPLACED_MANIFEST)
_LOCK = ".fastsft-lock"


def what_was_written(step_directory: Path, half_removed: bool = False) -> list[str] | None:
    """Paths below a step directory; None unless each of its parts has, or had until a save replaced it, a
    manifest of fastsft. Links are somebody else's, whether one is in place of the step, a part or a manifest.

    half_removed: the directory may be what `remove_written` had not finished: empty, or with empty parts.
    """
    if step_directory.is_symlink() or not step_directory.is_dir():
        return None
    names: list[str] = []
    parts = layout.components(step_directory)
    for part in parts:
        listed = None if part.is_symlink() else _listed(part)
        if half_removed and listed is None and not part.is_symlink() and not os.listdir(part):
            listed = [layout.MANIFEST]  # what it had, so that its folder counts as ours
        if listed is None:
            return None
        names += [f"{part.name}/{name}" for name in listed]
    return names if parts or (half_removed and not os.listdir(step_directory)) else None


def remove_written(step_directory: Path, written: Sequence[str], with_manifests: bool = False) -> list[str]:
    """Remove `written`, and the directory unless something else is in it; returns what does.

    Manifests go last, when nothing else is left, or `with_manifests`: until then a prune that comes later
    knows whose the directory is. No link is followed.
    """
    from fastsft import _C

    manifests = [name for name in written if name.rpartition("/")[2] in _MANIFESTS]
    files = written if with_manifests else sorted({*written} - {*manifests})
    left = _C.remove_named(str(step_directory), list(files))
    others = [name for name in left if name not in manifests]
    if not others:
        _C.remove_named(str(step_directory), manifests)
        step_directory.rmdir()
    return others


def _listed(part: Path) -> list[str] | None:
    """Names below the part; None where no manifest of fastsft can be read."""
    from fastsft import _C

    found: list[str] = []
    inside = os.listdir(part)
    for name in inside:
        staged = name.startswith(temporary_name(layout.MANIFEST, ""))  # of a save that was killed
        if (name in _MANIFESTS or staged) and not (part / name).is_symlink():
            with contextlib.suppress(ValueError, RuntimeError):  # damaged: it says nothing
                found += [name, *[file.name for file in _C.read_manifest(str(part), name).files]]
    if not any(name in found for name in _MANIFESTS):
        return None
    return found + [name for name in inside if name == _LOCK or name.startswith(TEMPORARY)]
