"""Why a run ended before its last step, in a few words."""

from __future__ import annotations

import signal

_SIGNAL_BASE = 128  # exit status of a run that a signal stopped: 128 + its number


def stop_reason(error: BaseException) -> str:
    """The name of a signal, else the kind of error and the first line of its message."""
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _SIGNAL_BASE:
        return signal_name(error.code - _SIGNAL_BASE)
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if first else ''}{first}"


def signal_name(number: int) -> str:
    """SIGTERM for 15."""
    known = {int(each): each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")
