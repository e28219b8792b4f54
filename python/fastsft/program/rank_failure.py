"""The search for the rank that failed first, and for its error message."""

from __future__ import annotations

import re

from fastsft.program.main import EXIT_ERROR, EXIT_PEER_LOST
from fastsft.program.rank_processes import Ranks
from fastsft.reporting.status import signal_name

_SAID = re.compile(r"(?:rank \d+: )?error: (.*)", re.S)
_TRACEBACK = "Traceback (most recent call last):"
_LAST_LINES = 20


class RankFailed(RuntimeError):
    """The error for a rank that ended before the run was over.

    rank: the rank's number. status: return code, as in subprocess. output: last lines that the rank printed.
    """

    def __init__(self, rank: int, count: int, status: int, output: str) -> None:
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"left with status {status}"
        super().__init__(f"rank {rank} of {count} {how}; it said last:\n{output}")
        self.rank, self.status, self.output = rank, status, output


def failure_of(ranks: Ranks) -> Exception | None:
    """Return the error of a run whose ranks have all exited. None after success or a requested stop.

    The error is from the first rank that failed by itself, and not because another rank was lost or this
    process ended it. It is a ValueError if the user can fix the fault.
    """
    if not ranks.failed:
        return _stopped(ranks)
    by_themselves = [rank for rank in ranks.failed if rank.process.returncode != EXIT_PEER_LOST]
    guilty = (by_themselves or ranks.failed)[0]
    status, text = guilty.process.returncode, last_words(list(guilty.lines))
    said = _SAID.fullmatch(text)
    if status == EXIT_ERROR and said:
        return ValueError(said[1])
    return RankFailed(guilty.number, len(ranks.ranks), status, text)


def _stopped(ranks: Ranks) -> Exception | None:
    """Return the error of a rank that another process has ended by a signal; None if there is none."""
    left = next((rank for rank in ranks.ranks if rank.process.returncode), None)
    if left is None or ranks.was_ended:
        return None
    return RankFailed(left.number, len(ranks.ranks), left.process.returncode, last_words(list(left.lines)))


def last_words(lines: list[str]) -> str:
    """Return the text from the last error message or traceback on, or the last 20 lines if there is none."""
    starts = [number for number, line in enumerate(lines) if is_error(line)]
    # Python prints an exception's cause before the exception. The text begins with the first cause.
    while len(starts) > 1 and _leads_to_next(lines[starts[-2] : starts[-1]]):
        starts.pop()
    return "\n".join(lines[starts[-1] :] if starts else lines[-_LAST_LINES:]).rstrip()


def is_error(line: str) -> bool:
    """True if `line` is the first line of an error message."""
    return line.startswith(_TRACEBACK) or _SAID.match(line) is not None


def _leads_to_next(lines: list[str]) -> bool:
    return any(
        "direct cause of the following" in line or "another exception occurred" in line for line in lines
    )
