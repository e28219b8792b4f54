"""Round numbers along an axis, and numbers as labels."""

from __future__ import annotations

import math
from itertools import pairwise


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], at most `most` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    width = next(power * factor for factor in (1, 2, 5, 10, 20) if _count(low, high, power * factor) <= most)
    first = math.ceil(low / width - 1e-9)
    return [number * width for number in range(first, math.floor(high / width + 1e-9) + 1)]


def tick_text(value: float, ticks: list[float]) -> str:
    """`value` with as many decimals as tell the `ticks` apart; very small and large ones as 2e-05."""
    width = min((abs(b - a) for a, b in pairwise(ticks)), default=abs(value) or 1.0)
    largest = max((abs(tick) for tick in ticks), default=abs(value))
    if largest and (largest < 1e-3 or largest >= 1e6):
        return "0" if abs(value) < width / 2 else f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(width) + 1e-9)) if width > 0 else 0
    return f"{value:,.{decimals}f}"


def _count(low: float, high: float, width: float) -> int:
    return math.floor(high / width + 1e-9) - math.ceil(low / width - 1e-9) + 1
