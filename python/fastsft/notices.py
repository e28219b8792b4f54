"""Notices to the user: each one once, on global rank 0 only."""

from __future__ import annotations

import logging
import os

_log = logging.getLogger("fastsft")
_said: set[str] = set()


def warn_once(text: str) -> None:
    """Log `text` as a warning of the logger `fastsft`, once a process and on global rank 0 only."""
    if text in _said:
        return
    _said.add(text)
    if os.environ.get("RANK", "0") == "0":
        _log.warning(text)
