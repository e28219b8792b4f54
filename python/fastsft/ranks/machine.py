"""This machine, told apart from others of the same name."""

from __future__ import annotations

import functools
import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def machine() -> str:
    """Device numbers hold on one running kernel; containers on it may share files or not."""
    return _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
