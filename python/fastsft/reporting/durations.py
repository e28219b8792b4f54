"""Lengths of time as a person reads them."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration_text(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 05 min or 3 d 4 h."""
    left = max(round(seconds), 0)
    if left < _MINUTE:
        return f"{left} s"
    if left < _HOUR:
        return f"{left // _MINUTE} min {left % _MINUTE:02d} s"
    if left < _DAY:
        return f"{left // _HOUR} h {left % _HOUR // _MINUTE:02d} min"
    return f"{left // _DAY} d {left % _DAY // _HOUR} h"
