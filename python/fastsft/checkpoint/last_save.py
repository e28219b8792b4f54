"""The save at the end of a run, whose weights are nowhere else: a full disk is waited for."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from fastsft import _C
from fastsft.ranks.agreement import on_any_rank
from fastsft.runtime.full_disk import is_of_full_disk
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

T = TypeVar("T")
_LOOK_S = 1.0  # between looks at the free bytes
_WORTH_TRYING = 1 << 20  # bytes that have become free
_TELL_S = 60.0  # between lines, and between attempts where room is not seen to come
_SIGNAL_BASE = 128


class Signals(Protocol):
    """A guard that notes signals."""

    answer: str  # what is said when one comes

    def take(self) -> int:
        """The one that any rank has received, or 0; collective."""


class LastSaves:
    """The saves at the end of a run; collective. make_room: frees what can be spared; False: nothing more."""

    def __init__(self, args: TrainingArguments, signals: Signals, make_room: Callable[[], bool]) -> None:
        self._args, self._signals, self._make_room = args, signals, make_room

    def save(self, what: str, save: Callable[[], T]) -> T:
        """`save()`, again and again while the disk has no room for it, up to --save_patience seconds.

        The ranks wait together, with a line a minute. what: is saved, for the lines. Raises what `save`
        raised last. SystemExit with 128 + its number after a signal, which ends the waiting.
        """
        folder = Path(self._args.output_dir or ".")
        end, told = time.monotonic() + self._args.save_patience, -math.inf
        while True:
            try:
                return save()
            except Exception as error:
                if not _is_of_room(error):
                    raise
                if self._make_room():
                    continue
                if on_any_rank(time.monotonic() >= end):
                    raise
                if time.monotonic() - told >= _TELL_S:
                    told = time.monotonic()
                    _tell_of_waiting(what, error, end - told)
            number = _wait(folder, min(end, told + _TELL_S), self._signals)
            if number:
                tell(
                    f"{what} is not saved: no room came; the same command resumes from the newest checkpoint"
                )
                raise SystemExit(_SIGNAL_BASE + number)


def _tell_of_waiting(what: str, error: Exception, seconds: float) -> None:
    tell(
        f"{error}\n  {what} is saved when there is room: waiting for up to {math.ceil(seconds / 60)} min, "
        "with the weights in memory (--save_patience)"
    )


def _is_of_room(error: Exception) -> bool:
    """The same on all ranks, all of which failed: where one has no room, its peers have an error about it."""
    if isinstance(error, _C.CollectiveError):
        return False
    found = is_of_full_disk(error)
    return on_any_rank(found) if found or isinstance(error, _C.PeerFailedError) else False


def _wait(folder: Path, until: float, signals: Signals) -> int:
    """Until a rank sees more free bytes, or it is `until`; the signal that came instead, or 0; collective."""
    before, answer, signals.answer = _free(folder), signals.answer, "the run waits no longer for room"
    try:
        while True:
            time.sleep(_LOOK_S)
            number = signals.take()
            if number not in (0, signal.SIGUSR1):
                return number
            if on_any_rank(time.monotonic() >= until or _free(folder) >= before + _WORTH_TRYING):
                return 0
    finally:
        signals.answer = answer


def _free(folder: Path) -> int:
    try:
        return int(_C.available_bytes(str(folder)))
    except (OSError, RuntimeError):
        return 0
