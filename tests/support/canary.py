"""What leaves a trace when somebody runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class Canary:
    """Unpickling it creates the file `trace`."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (str(self.trace), "w")


def write_code(path: Path, trace: Path) -> None:
    """A Python module that creates the file `trace` when it is imported."""
    path.write_text(f"open({str(trace)!r}, 'w').close()\nclass Config: ...\nclass Model: ...\n")
