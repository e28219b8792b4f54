"""The directories of a job as Trinity lays them out (docs/spec/weight_sync.md, section 2.1)."""

from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

CHECKPOINT_FILE = "latest_checkpointed_iteration.txt"
STATE_DICT_FILE = "latest_state_dict_iteration.txt"
FULL_MARKER = ".full_checkpoint"
MANIFEST = "manifest.json"
REPLACED_MANIFEST = ".fastsft-replaced-manifest.json"  # while a save puts its files in the place of others

_ITERATION_BYTES = 64
_STEP = re.compile(r"global_step_(\d+)")
_LOGGER = logging.getLogger(__name__)


def step_directories(job: Path) -> dict[int, Path]:
    """step -> `global_step_<step>`, in ascending order."""
    if not job.is_dir():
        return {}
    found = {int(m[1]): path for path in job.iterdir() if (m := _STEP.fullmatch(path.name)) and path.is_dir()}
    return dict(sorted(found.items()))


def problems(directory: Path, checksums: bool = False) -> list[str]:
    """Faults of a saved directory, by its manifest; empty when a reader may take it."""
    from fastsft import _C

    return list(_C.verify_directory(str(directory), checksums))


def components(step_directory: Path) -> list[Path]:
    """The parts of a step that hold weights: `actor`, `critic`."""
    return sorted(
        path for path in step_directory.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def is_complete(step_directory: Path) -> bool:
    """True if every part of the step has a manifest whose sizes match."""
    parts = components(step_directory)
    return bool(parts) and not any(problems(part) for part in parts)


def is_half_replaced(directory: Path) -> bool:
    """True if a save over an earlier one ended before its manifest: the files may be of both."""
    return (directory / REPLACED_MANIFEST).exists() and not (directory / MANIFEST).exists()


def read_iteration(path: Path) -> int | None:
    """The step that an iteration file names; None when it is missing, empty, no number or no regular file."""
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
    """Durable on return; a reader sees the old or the new number, never a half."""
    from fastsft import _C

    _C.replace_file(str(path), str(step))
