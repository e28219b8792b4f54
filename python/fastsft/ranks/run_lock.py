"""One run at a time writes into an output directory (reliability.md, section 4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastsft.ranks.agreement import Agreement

_held: dict[str, Any] = {}  # by path; the lock itself on rank 0, None elsewhere


@contextmanager
def run_lock(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Hold `directory`, which exists, for this run; collective. Inside another hold of it nothing happens.

    ValueError on every rank, naming host and process, when another run holds it.
    """
    from fastsft import _C

    path = os.path.realpath(directory)
    if path in _held:
        yield
        return
    agreement = Agreement(f"locking {directory}")
    lock = agreement.attempt_on_first(lambda: _C.RunLock(str(directory)))
    try:
        agreement.settle(None)
        _held[path] = lock
        yield
    finally:
        _held.pop(path, None)
        if lock is not None:
            lock.release()


def holds_lock(directory: str | os.PathLike[str]) -> bool:
    """Whether this process itself holds `directory`: no other run writes there."""
    return _held.get(os.path.realpath(directory)) is not None
