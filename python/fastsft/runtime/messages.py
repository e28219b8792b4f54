"""Print messages to the user, on global rank 0 only."""

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
    """The messages that `collected` has collected.

    warned: texts that were passed to `warn_once`. told: texts that were passed to `tell`.
    """

    warned: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


_collecting: Notices | None = None
_beside_result = False


@contextlib.contextmanager
def collected() -> Iterator[Notices]:
    """Collect the block's messages in the yielded object instead of printing them.

    Messages that were printed earlier in this process are collected, too.
    """
    global _collecting
    before, _collecting = _collecting, Notices()
    try:
        yield _collecting
    finally:
        _collecting = before


@contextlib.contextmanager
def beside_result() -> Iterator[None]:
    """Print the block's messages to stderr, so that stdout has only a command's result."""
    global _beside_result
    before, _beside_result = _beside_result, True
    try:
        yield
    finally:
        _beside_result = before


def warn_once(text: str) -> None:
    """Log `text` as a warning of the logger `fastsft`, once per process, on global rank 0 only."""
    if _collecting is not None:
        _collecting.warned += [] if text in _collecting.warned else [text]
        return
    if text in _said:
        return
    _said.add(text)
    if os.environ.get("RANK", "0") == "0":
        shown = visible(text)
        # Without a handler, logging writes the line to stderr, so the line is wrapped for a terminal here.
        with _above_bars():
            _log.warning(shown if _log.hasHandlers() else fitted(shown, sys.stderr))


def tell(text: str) -> None:
    """Print `text` on global rank 0, to stdout or, in a block of `beside_result`, to stderr."""
    if _collecting is not None:
        _collecting.told.append(text)
        return
    if launch().rank == 0:
        stream = sys.stderr if _beside_result else sys.stdout
        with _above_bars():
            say(fitted(visible(text, keep="\n\t\r"), stream), to_stderr=_beside_result)


def tell_once(text: str) -> None:
    """Print `text` like `tell`, but only once per process."""
    if text not in _said:
        _said.add(text)
        tell(text)


def _above_bars() -> contextlib.AbstractContextManager[object]:
    """Return a context manager that clears tqdm's bars while text is printed, and redraws them below."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return contextlib.nullcontext() if tqdm is None else tqdm.external_write_mode(file=sys.stdout)


def rank0_print(*args: Any) -> None:
    """Print on global rank 0, if `train()` or a script has set `fastsft.train.local_rank` to 0."""
    # FastChat's scripts set this attribute. An import of fastsft.train here would be circular.
    local_rank = getattr(sys.modules.get("fastsft.train"), "local_rank", None)
    if local_rank == 0 and os.environ.get("RANK", "0") == "0":
        say(fitted(" ".join(map(str, args)), sys.stdout))
