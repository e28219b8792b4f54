"""Notices to the user, printed once each, by global rank 0 only."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fastsft.runtime.launch import launch
from fastsft.runtime.terminal import fitted, say, visible

_log = logging.getLogger("fastsft")
_said: set[str] = set()


@dataclass
class Notices:
    """The messages that `collected` gathered instead of printing them."""

    warned: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


_collecting: Notices | None = None
_beside_result = False


@contextlib.contextmanager
def collected() -> Iterator[Notices]:
    """Collect notices in the object instead of printing them, repeated notices too."""
    global _collecting
    before, _collecting = _collecting, Notices()
    try:
        yield _collecting
    finally:
        _collecting = before


@contextlib.contextmanager
def beside_result() -> Iterator[None]:
    """Send notices to stderr, and keep standard output for the result of a command."""
    global _beside_result
    before, _beside_result = _beside_result, True
    try:
        yield
    finally:
        _beside_result = before


def warn_once(text: str) -> None:
    """Log `text` as a warning of the logger `fastsft`, once in a process, on global rank 0 only."""
    if _collecting is not None:
        _collecting.warned += [] if text in _collecting.warned else [text]
        return
    if text in _said:
        return
    _said.add(text)
    if os.environ.get("RANK", "0") == "0":
        shown = visible(text)
        with _above_bars():  # without handlers logging writes the line itself to stderr
            _log.warning(shown if _log.hasHandlers() else fitted(shown, sys.stderr))


def tell(text: str) -> None:
    """Print on global rank 0, also when a script uses the library; to stdout unless `beside_result`."""
    if _collecting is not None:
        _collecting.told.append(text)
        return
    if launch().rank == 0:
        stream = sys.stderr if _beside_result else sys.stdout
        with _above_bars():
            say(fitted(visible(text, keep="\n\t\r"), stream), to_stderr=_beside_result)


def tell_once(text: str) -> None:
    """Print like `tell`, but each text once in a process, for a state that is found repeatedly."""
    if text not in _said:
        _said.add(text)
        tell(text)


def _above_bars() -> contextlib.AbstractContextManager[object]:
    """Return a context that hides tqdm's bars, and draws them again below the printed text."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return contextlib.nullcontext() if tqdm is None else tqdm.external_write_mode(file=sys.stdout)


def rank0_print(*args: Any) -> None:
    """Print on global rank 0, once `train()` has set `fastsft.train.local_rank`."""
    # FastChat's scripts set it there; importing the module here would be circular.
    local_rank = getattr(sys.modules.get("fastsft.train"), "local_rank", None)
    if local_rank == 0 and os.environ.get("RANK", "0") == "0":
        say(fitted(" ".join(map(str, args)), sys.stdout))
