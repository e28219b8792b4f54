"""The saves at a run's end. The weights exist nowhere else, so a save waits while the disk is full."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from fastsft import _C
from fastsft.ranks.exchange import on_any_rank
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.file_calls import is_disk_full
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

T = TypeVar("T")
_LOOK_S = 1.0  # time between checks of the free disk space [s]
_WORTH_TRYING = 1 << 20  # disk space that must become free before another attempt [bytes]
_TELL_S = 60.0  # time between messages, and between attempts while no space becomes free [s]
_SIGNAL_BASE = 128
_MARK = "outcome of a last save"


class Signals(Protocol):
    """An object that keeps received signals until `take` returns them."""

    answer: str  # text that is printed when a signal arrives

    def take(self) -> int:
        """Return the signal that any rank has received, or 0. Collective."""


class LastSaves:
    """The saves at a run's end.

    make_room: function that frees disk space, and returns False if nothing is left to free.
    """

    def __init__(self, args: TrainingArguments, signals: Signals, make_room: Callable[[], bool]) -> None:
        self._args, self._signals, self._make_room = args, signals, make_room

    def save(self, what: str, save: Callable[[], T]) -> T:
        """Call `save`, repeatedly for --save_patience seconds while the disk is full. Return its result.

        Collective. All ranks wait together, with a message every minute, and finally raise the last error. A
        signal ends the waiting with SystemExit 128 + the signal's number. what: name of the files in
        messages. save: function of fastsft that fails on all ranks if it fails on any.
        """
        folder = Path(self._args.output_dir or ".")
        end, told = time.monotonic() + self._args.save_patience, -math.inf
        while True:
            outcome = _Outcome(what)
            result = outcome.of(save)
            if outcome.is_done_everywhere():
                return cast(T, result)
            if self._make_room():
                continue
            if on_any_rank(time.monotonic() >= end):
                raise outcome.failure()
            if time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                _tell_of_waiting(what, outcome.failure(), end - told)
            del outcome  # the error refers to stack frames that hold memory of the save
            number = _wait(folder, min(end, told + _TELL_S), self._signals)
            if number:
                tell(
                    f"{what} is not saved: no room came; the same command resumes from the newest checkpoint"
                )
                raise SystemExit(_SIGNAL_BASE + number)


class _Outcome:
    """The outcome of one attempt to save `what`, on this rank and, after an exchange, on all ranks."""

    def __init__(self, what: str) -> None:
        self._what, self._error = what, cast("Exception | None", None)
        self._failed: tuple[int, str] | None = None  # the first rank that failed, and its message

    def of(self, save: Callable[[], T]) -> T | None:
        """Return the result of `save`; None if it failed."""
        try:
            return save()
        except Exception as error:
            self._error = error
            return None

    def is_done_everywhere(self) -> bool:
        """Return True if all ranks have saved, False if all failures are for lack of disk space. Collective.

        After any other failure, raise this rank's error or PeerFailedError. Also raise if a rank has died, or
        is still inside `save`: that rank takes this exchange for an exchange of an AllOrNone, and raises this
        rank's error.
        """
        error = self._error
        if isinstance(error, _C.CollectiveError):
            raise error
        note = None if error is None else (isinstance(error, ValueError), str(error))
        try:
            reports = gather_objects((note, (_MARK, _kind(error))))
        except _C.CollectiveError:
            if error is None:
                raise
            raise error from None
        self._failed = next(((rank, report[0][1]) for rank, report in enumerate(reports) if report[0]), None)
        kinds = {report[1][1] if _is_outcome(report[1]) else "other" for report in reports}
        if kinds == {"done"}:
            return True
        if "room" not in kinds or "other" in kinds:
            raise self.failure()
        return False

    def failure(self) -> Exception:
        """Return this rank's error, or a PeerFailedError about the first rank that failed."""
        if self._error is not None:
            return self._error
        rank, message = self._failed or (0, "it is elsewhere in the program")
        return _C.PeerFailedError(f"saving {self._what}: rank {rank} failed: {message}")


def _kind(error: Exception | None) -> str:
    """Return the kind of outcome: "done", "room" (disk full), "peer" (another rank has failed) or "other"."""
    if error is None:
        return "done"
    if is_disk_full(error):
        return "room"
    return "peer" if isinstance(error, _C.PeerFailedError) else "other"


def _is_outcome(value: object) -> bool:
    return isinstance(value, tuple) and value[:1] == (_MARK,)


def _tell_of_waiting(what: str, error: Exception, seconds: float) -> None:
    tell(
        f"{error}\n  {what} is saved when there is room: waiting for up to {math.ceil(seconds / 60)} min, "
        "with the weights in memory (--save_patience)"
    )


def _wait(folder: Path, until: float, signals: Signals) -> int:
    """Wait until any rank sees more free disk space, until the time `until`, or until a signal.

    Return the received signal, or 0. Collective.
    """
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
