"""The rank that failed first, and its message."""

from __future__ import annotations

import re

from fastsft.program.main import EXIT_ERROR, EXIT_PEER_LOST
from fastsft.program.rank_processes import Ranks
from fastsft.reporting.status import signal_name

_SAID = re.compile(r"(?:rank \d+: )?error: (.*)", re.S)
_TRACEBACK = "Traceback (most recent call last):"
_LAST_LINES = 20


class RankFailed(RuntimeError):
    """A rank ended before the run was over.

    rank: its number. status: its return code, as in subprocess. output: its last lines.
    """

    def __init__(self, rank: int, count: int, status: int, output: str) -> None:
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"left with status {status}"
        super().__init__(f"rank {rank} of {count} {how}; it said last:\n{output}")
        self.rank, self.status, self.output = rank, status, output


def failure_of(ranks: Ranks) -> Exception | None:
    """Return the error of ranks that have all exited; None if all succeeded or were stopped on request.

    The error is that of the first rank that failed by itself, and neither lost a peer nor was ended by this
    process. It is a ValueError if the user can fix it.
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
    """Return the error of ranks that were ended by a signal of another process; None if there is none."""
    left = next((rank for rank in ranks.ranks if rank.process.returncode), None)
    if left is None or ranks.was_ended:
        return None
    return RankFailed(left.number, len(ranks.ranks), left.process.returncode, last_words(list(left.lines)))


def last_words(lines: list[str]) -> str:
    """Return the lines from the last error message or traceback on; without one, the last 20 lines."""
    starts = [number for number, line in enumerate(lines) if is_error(line)]
    # Python prints the cause of an exception before the exception; the text begins with the first cause.
    while len(starts) > 1 and _leads_to_next(lines[starts[-2] : starts[-1]]):
        starts.pop()
    return "\n".join(lines[starts[-1] :] if starts else lines[-_LAST_LINES:]).rstrip()


def is_error(line: str) -> bool:
    """True if an error message begins with this line."""
    return line.startswith(_TRACEBACK) or _SAID.match(line) is not None


def _leads_to_next(lines: list[str]) -> bool:
    return any(
        "direct cause of the following" in line or "another exception occurred" in line for line in lines
    )
