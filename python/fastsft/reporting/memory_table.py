"""The memory plan as lines."""

from __future__ import annotations

from fastsft.device_memory import size_text
from fastsft.memory_plan import MemoryPlan


def memory_table(plan: MemoryPlan, memory: int | None = None) -> list[str]:
    """One line a part, the largest first, then the sum beside the `memory` of a rank, if known."""
    parts = [*plan.parts.items(), ("attention scratch", plan.outside)]
    rows = sorted(((name, size) for name, size in parts if size > 0), key=lambda row: -row[1])
    lines = [f"{name:<26}{size_text(size):>12}{size / plan.total:>8.1%}" for name, size in rows]
    of = f" of {size_text(memory)}" if memory is not None else ""
    return [*lines, f"{'a rank at most':<26}{size_text(plan.total):>12}{of}"]
