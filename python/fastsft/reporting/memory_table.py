"""The memory plan as lines."""

from __future__ import annotations

from fastsft.planning.devices import size_text
from fastsft.planning.memory_plan import EngineSettings, MemoryPlan
from fastsft.planning.plan_choice import MemoryBudget


def memory_table(plan: MemoryPlan, room: MemoryBudget | None = None) -> list[str]:
    """One line a part, the largest first, then the sums and the `room` of a rank, if known.

    Activations of a model that is not native are an estimate, and so is their sum.
    """
    parts = [*plan.parts.items(), ("attention scratch", plan.outside)]
    rows = sorted(((name, size) for name, size in parts if size > 0), key=lambda row: -row[1])
    lines = [f"{name:<26}{size_text(size):>12}{size / plan.total:>8.1%}" for name, size in rows]
    sums = "a rank at most" if plan.setting.generic is None else "a rank, estimated"
    lines.append(_sum(sums, plan.total, room.device if room else None))
    if plan.host:
        lines.append(_sum("and of the host", plan.host, room.host if room else None))
    lines.append(_sum("host copy while saving", plan.staging, None))
    return lines


def how_held(setting: EngineSettings) -> str:
    """Ranks, strategy and precision of a run in words."""
    state = setting.state
    words = [f"{setting.world_size} rank{'s' if setting.world_size > 1 else ''}"]
    if setting.world_size > 1:
        nodes = f" in nodes of {setting.node_size}" if setting.node_size else ""
        words.append(f"{state.strategy}{nodes}")
    narrow = state.compute_dtype != "float32"
    words.append(f"{state.compute_dtype} over fp32 weights" if narrow else "float32")
    if setting.adapters or (setting.generic is not None and setting.generic.layout.frozen_places):
        bits = " in 4 bits" if state.frozen_dtype == "nf4" else ""
        words.append(f"adapters on a frozen model{bits}")
    if state.optimizer != "adamw":
        words.append(f"optimizer {state.optimizer}")
    if state.grad_dtype != "float32":
        words.append(f"{state.grad_dtype} gradients")
    if not state.sync_each_batch:
        words.append("gradients reduced once a step")
    if state.offload:
        words.append("optimizer state on the host")
    return ", ".join(words)


def _sum(name: str, size: int, of: int | None) -> str:
    return f"{name:<26}{size_text(size):>12}" + (f" of {size_text(of)}" if of is not None else "")
