"""A job's directories in Trinity's layout, and their pruning (docs/spec/weight_sync.md, section 2.1)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fastsft import _C
from fastsft.weight_sync.files import TEMPORARY, temporary_start

CHECKPOINT_FILE = "latest_checkpointed_iteration.txt"
STATE_DICT_FILE = "latest_state_dict_iteration.txt"
FULL_MARKER = ".full_checkpoint"
MANIFEST = "manifest.json"
# Name that the old manifest has while a save replaces files.
REPLACED_MANIFEST = ".fastsft-replaced-manifest.json"

MOST_MANIFEST_BYTES = 64 << 20

Identity = tuple[int, ...]

_ITERATION_BYTES = 64
_STEP = re.compile(r"global_step_(\d+)")
_LOGGER = logging.getLogger(__name__)


def step_directories(job: Path) -> dict[int, Path]:
    """Return the directories `global_step_<step>`, by step, in ascending order."""
    if not job.is_dir():
        return {}
    steps = {int(m[1]): path for path in job.iterdir() if (m := _STEP.fullmatch(path.name)) and path.is_dir()}
    return dict(sorted(steps.items()))


def problems(directory: Path, checksums: bool = False) -> list[str]:
    """Return the faults that a saved directory has by its manifest; empty if there are none."""
    return list(_C.verify_directory(str(directory), checksums))


def identities(directory: Path) -> list[Identity]:
    """Return an identity for each file in the manifest, which changes if the file is replaced or changed."""
    try:
        names = [file.name for file in _C.read_manifest(str(directory)).files]
    except (ValueError, RuntimeError):  # `problems` reports the error
        return []
    return [_identity(directory / name) for name in names]


def _identity(path: Path) -> Identity:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def components(step_directory: Path) -> list[Path]:
    """Return the subdirectories of a step that hold weights, such as `actor` and `critic`."""
    return sorted(
        path for path in step_directory.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def is_complete(step_directory: Path) -> bool:
    """Return True if every part of the step has a manifest, and the files have the sizes in it."""
    parts = components(step_directory)
    return bool(parts) and not any(problems(part) for part in parts)


def is_half_replaced(directory: Path) -> bool:
    """Return True if a save that replaced another save ended before it wrote its manifest.

    Both saves' files may then be mixed.
    """
    return (directory / REPLACED_MANIFEST).exists() and not (directory / MANIFEST).exists()


def read_iteration(path: Path) -> int | None:
    """Return the step in an iteration file; None if the file is missing, not regular, or has no number."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(_ITERATION_BYTES).decode("ascii") if _is_regular(file) else ""
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(r"\d{1,18}\s*", text):
        _LOGGER.warning("%s: expected a step, got %r; ignored", path, text[:40])
        return None
    return int(text)


def _is_regular(file: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def write_iteration(path: Path, step: int) -> None:
    """Write an iteration file durably and atomically, so that readers see either the old or the new step."""
    _C.replace_file(str(path), str(step))


_MANIFESTS = (MANIFEST, REPLACED_MANIFEST)
_LOCK = ".fastsft-lock"


def what_was_written(step_directory: Path, half_removed: bool = False) -> list[str] | None:
    """Return the paths below a step directory that fastsft wrote; None if fastsft did not write the
    directory.

    Each part must have a fastsft manifest, or an old manifest that a save was replacing. A step, part or
    manifest that is a symbolic link does not count as fastsft's. half_removed: True if the directory may be
    left over from an interrupted `remove_written`, so that it may be empty or have empty parts.
    """
    if step_directory.is_symlink() or not step_directory.is_dir():
        return None
    names: list[str] = []
    parts = components(step_directory)
    for part in parts:
        listed = None if part.is_symlink() else _listed(part)
        if half_removed and listed is None and not part.is_symlink() and not os.listdir(part):
            listed = [MANIFEST]  # the manifest is removed last, so an empty folder was fastsft's
        if listed is None:
            return None
        names += [f"{part.name}/{name}" for name in listed]
    return names if parts or (half_removed and not os.listdir(step_directory)) else None


def remove_written(step_directory: Path, written: Sequence[str], with_manifests: bool = False) -> list[str]:
    """Remove the paths `written`, and the directory if it is empty then.

    Return other programs' files in it.

    Manifests are removed last, and only if nothing else is left, or if `with_manifests` is True. By the
    manifests, a later prune knows that the directory is fastsft's. Links are not followed.
    """
    manifests = [name for name in written if name.rpartition("/")[2] in _MANIFESTS]
    files = written if with_manifests else sorted({*written} - {*manifests})
    left = _C.remove_named(str(step_directory), list(files))
    others = [name for name in left if name not in manifests]
    if not others:
        _C.remove_named(str(step_directory), manifests)
        step_directory.rmdir()
    return others


def _listed(part: Path) -> list[str] | None:
    """Return the names of fastsft's files in a part; None if the part has no readable fastsft manifest."""
    names: list[str] = []
    inside = os.listdir(part)
    for name in inside:
        staged = name.startswith(temporary_start(MANIFEST))  # left by a save that was killed
        if (name in _MANIFESTS or staged) and not (part / name).is_symlink():
            with contextlib.suppress(ValueError, RuntimeError):  # a damaged manifest counts as missing
                names += [name, *[file.name for file in _C.read_manifest(str(part), name).files]]
    if not any(name in names for name in _MANIFESTS):
        return None
    return names + [name for name in inside if name == _LOCK or name.startswith(TEMPORARY)]


_TRASH = ".fastsft-trash-"
_OPTIMIZER = ("optim", "training_state")


def prune(job: Path, keep: int, leased: Collection[int]) -> list[int]:
    """Remove old steps, as `CheckpointMonitor.prune` documents. ValueError if `keep` is below 1."""
    if keep < 1:
        raise ValueError(f"keep: expected 1 or more, got {keep}")
    for trash in sorted(job.glob(f"{_TRASH}global_step_*")):  # left by a prune that was killed
        if (written := what_was_written(trash, half_removed=True)) is not None:
            _is_removed(partial(_discard, trash, written), trash)
    steps = step_directories(job)
    complete = [step for step, path in steps.items() if is_complete(path)]
    if not complete:
        return []
    kept = set(complete[-keep:]) | set(leased)
    old = [
        step
        for step, path in steps.items()
        if step < complete[-1] and step not in kept and not (path / FULL_MARKER).exists()
    ]
    return [step for step in old if _remove(steps[step])]


def has_optimizer(step_directory: Path) -> bool:
    """Return True if all manifests in a complete step list optimizer state."""
    return all(
        any(file.name.startswith(_OPTIMIZER) for file in _C.read_manifest(str(part)).files)
        for part in components(step_directory)
    )


def _remove(directory: Path) -> bool:
    """Remove a step, atomically for readers. Return False if the step is kept."""
    written = what_was_written(directory)
    if written is None:
        return False
    trash = directory.with_name(f"{_TRASH}{directory.name}")
    # Belongs to another program, because `prune` has removed fastsft's.
    if trash.is_symlink() or trash.exists():
        _LOGGER.warning("%s: expected nothing of this name; move it away: %s stays", trash, directory.name)
        return False
    if why := _C.protection_inside(str(directory)):
        _LOGGER.warning("%s stays: %s", directory, why)
        return False
    return _is_removed(lambda: _rename_and_discard(directory, trash, written), directory)


def _is_removed(remove: Callable[[], None], path: Path) -> bool:
    """Call `remove`. If the system refuses, log a warning and return False, so that saves continue."""
    try:
        remove()
    except (OSError, _C.FileError) as error:
        _LOGGER.warning("%s stays: %s", path, error)
        return False
    return True


def _rename_and_discard(directory: Path, trash: Path, written: list[str]) -> None:
    directory.rename(trash)
    _discard(trash, written)


def _discard(trash: Path, written: list[str]) -> None:
    """Remove a step's files from its renamed directory.

    If it also holds other programs' files, the directory gets its old name back and keeps these files, but
    no manifest. So it no longer counts as a saved step.
    """
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


def published_steps(job: Path) -> tuple[int, int]:
    """Return the published steps (full checkpoint, weights), and correct the iteration files if needed."""
    steps = step_directories(job)
    complete = [step for step, path in steps.items() if is_complete(path)]
    full = [step for step in complete if (steps[step] / FULL_MARKER).exists()]
    checkpoint = _usable(read_iteration(job / CHECKPOINT_FILE), steps)
    # For weights, a manifest is enough. A checkpoint needs its iteration file, or a marker and optimizer
    # state.
    checkpoint = max([checkpoint, *(s for s in full if has_optimizer(steps[s]))])
    weights = _usable(read_iteration(job / STATE_DICT_FILE), steps)
    weights = max([weights, checkpoint, *complete])
    for name, step in ((CHECKPOINT_FILE, checkpoint), (STATE_DICT_FILE, weights)):
        named = read_iteration(job / name)
        if step and named != step:
            write_iteration(job / name, step)
        elif not step and named in steps:  # the file names a step that does not match its manifest
            (job / name).unlink()
    return checkpoint, weights


def _usable(step: int | None, steps: dict[int, Path]) -> int:
    """Return `step`; 0 if its directory is missing, half replaced, or does not match its manifest."""
    if step is None or step not in steps:
        return 0
    parts = components(steps[step])
    if any(is_half_replaced(part) for part in parts):
        return 0
    with_manifest = [part for part in parts if (part / MANIFEST).exists()]
    return 0 if any(problems(part) for part in with_manifest) else step


_MOST_LISTED = 5


def some(texts: Sequence[str], between: str = ", ") -> str:
    """Join the first five of `texts`, and mention how many further texts there are."""
    more = len(texts) - _MOST_LISTED
    return between.join(texts[:_MOST_LISTED]) + (f"{between}and {more} more" if more > 0 else "")
