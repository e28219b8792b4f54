"""Formats a memory plan and its predicted speed as lines of text."""

from __future__ import annotations

from typing import Any

from fastsft.planning.devices import size_text
from fastsft.planning.gpus import PCIE_LINK
from fastsft.planning.memory_plan import EngineSettings, MemoryPlan
from fastsft.planning.plan_request import MemoryBudget
from fastsft.planning.time_model import CENTRAL, HIGH, LOW, predict, why_not


def memory_table(plan: MemoryPlan, room: MemoryBudget | None = None) -> list[str]:
    """Return a line for each part of the plan, the largest first, then lines with the sums.

    room: memory that a rank may use, shown next to the sums. For generic models, activations and sums are
    estimates.
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
    """Return rank count, sharding strategy and precision as text."""
    state = setting.state
    facts = [f"{setting.world_size} rank{'s' if setting.world_size > 1 else ''}"]
    if setting.world_size > 1:
        nodes = f" in nodes of {setting.node_size}" if setting.node_size else ""
        facts.append(f"{state.strategy}{nodes}")
    if state.context_parallel_size > 1:
        facts.append(f"each row on {state.context_parallel_size} ranks")
    narrow = state.compute_dtype != "float32"
    facts.append(f"{state.compute_dtype} over fp32 weights" if narrow else "float32")
    if state.fp8 != "none":
        facts.append(_fp8_text(setting))
    if setting.adapters or (setting.generic is not None and setting.generic.layout.frozen_places):
        bits = " in 4 bits" if state.frozen_dtype == "nf4" else ""
        facts.append(f"adapters on a frozen model{bits}")
    if state.optimizer != "adamw":
        facts.append(f"optimizer {state.optimizer}")
    if state.grad_dtype != "float32":
        facts.append(f"{state.grad_dtype} gradients")
    if not state.sync_each_batch:
        facts.append("gradients reduced once a step")
    if state.offload:
        facts.append("optimizer state on the host")
    return ", ".join(facts)


def _fp8_text(setting: EngineSettings) -> str:
    """Return which linear layers compute in 8 bits, and how, as text."""
    state = setting.state
    left = state.num_layers_at_start_in_bf16, state.num_layers_at_end_in_bf16
    kept = f" but for the first {left[0]} and last {left[1]} blocks" if any(left) else ""
    emulated = " (emulated on a CPU: slower than bfloat16)" if setting.device == "cpu" else ""
    made = ", weights kept in 8 bits" if state.keep_fp8_weights else ""
    wgrad = ", also for weight gradients" if state.fp8_wgrad else ""
    return f"linear layers in fp8 {state.fp8}, {state.fp8_format}{kept}{wgrad}{made}{emulated}"


def _sum(name: str, size: int, of: int | None) -> str:
    return f"{name:<26}{size_text(size):>12}" + (f" of {size_text(of)}" if of is not None else "")


def speed_lines(plan: MemoryPlan) -> list[str]:
    """Return lines about predicted tokens per second, time by purpose, and assumptions.

    The plan's setting must have a GPU.
    """
    gpu, ranks = plan.setting.gpu, plan.setting.world_size
    assert gpu is not None
    if reason := why_not(plan):
        return [f"no prediction of speed: {reason}"]
    low, central, high = (predict(plan, gpu, rates) for rates in (LOW, CENTRAL, HIGH))
    total = sum(central.seconds.values())
    shares = {name: seconds / total for name, seconds in central.seconds.items()}
    parts = sorted(shares.items(), key=lambda part: -part[1])
    return [
        f"predicted, not measured: {_rounded(central.tokens_per_second)} tokens/s on {ranks} x {gpu.name} "
        f"({_rounded(low.tokens_per_second)} to {_rounded(high.tokens_per_second)}), MFU {central.mfu:.0%}",
        "time of a token: " + ", ".join(f"{name} {part:.0%}" for name, part in parts if part >= 0.005),
        f"assumed: conversations of {plan.work.max_seqlen:,} tokens; "
        f"matrix products at {CENTRAL.products:.0%} "
        f"({LOW.products:.0%} to {HIGH.products:.0%}) of {gpu.flops / 1e12:,.0f} TFLOP/s, "
        + (f"those of 8 bits {CENTRAL.fp8_gain} times as fast, " if plan.setting.state.fp8 != "none" else "")
        + "other kernels at "
        f"{CENTRAL.elementwise:.0%} of {gpu.bandwidth / 1e12:.2f} TB/s"
        + (f", collectives at {CENTRAL.link:.0%} of {_link(gpu.link)}" if ranks > 1 else ""),
    ]


def speed_record(plan: MemoryPlan) -> dict[str, Any]:
    """Return the predicted speed as values for JSON; {} if the GPU is unknown or there is no prediction."""
    gpu = plan.setting.gpu
    if gpu is None or why_not(plan):
        return {}
    central = predict(plan, gpu)
    return {
        "predicted": {
            "gpu": gpu.name,
            "tokens_per_second": central.tokens_per_second,
            "mfu": central.mfu,
            "seconds_per_token": central.seconds,
        }
    }


def _rounded(number: float) -> str:
    """Return the number as text, rounded to three significant digits."""
    return f"{float(f'{number:.3g}'):,.0f}"


def _link(link: float) -> str:
    return f"{link / 1e9:.0f} GB/s (NVLink)" if link else f"{PCIE_LINK / 1e9:.0f} GB/s (PCIe)"
