"""The command that talks to what a run has saved."""

from __future__ import annotations

import shlex
from pathlib import Path


def talk_command(directory: Path) -> str:
    """As typed in the directory where the run was started."""
    return f"fastsft chat {shlex.quote(str(directory))}"
