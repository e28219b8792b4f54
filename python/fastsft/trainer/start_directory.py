"""Relative paths mean what they meant when the Trainer was made, wherever the script went (os.chdir)."""

from __future__ import annotations

import os
from typing import Any

from fastsft.arguments import TrainingArguments

_PATHS = ("output_dir", "logging_dir", "profile")


def working_directory() -> str | None:
    """None where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


class StartDirectory:
    """Keeps paths of the arguments where they were; a part of Trainer."""

    args: TrainingArguments
    _started_in: str | None
    _planned: dict[str, Any]

    def _keep_paths(self) -> None:
        """After a change of the working directory, make relative paths absolute that nobody has set since."""
        if self._started_in is None or working_directory() == self._started_in:
            return
        for name in _PATHS:
            path = getattr(self.args, name, None)
            if isinstance(path, str) and not os.path.isabs(path) and path == self._planned.get(name, path):
                absolute = os.path.join(self._started_in, path)
                setattr(self.args, name, absolute)
                if name in self._planned:
                    self._planned[name] = absolute
