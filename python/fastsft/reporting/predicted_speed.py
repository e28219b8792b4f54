"""The predicted speed of a plan, as lines and as a record."""

from __future__ import annotations

from typing import Any

from fastsft.planning.devices import PCIE_LINK
from fastsft.planning.memory_plan import MemoryPlan
from fastsft.planning.time_model import CENTRAL, HIGH, LOW, predict, why_not


def speed_lines(plan: MemoryPlan) -> list[str]:
    """Tokens per second, its range, where the time goes, what was assumed. The plan's setting has a gpu."""
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
        f"assumed: conversations of {plan.work.max_seqlen:,} tokens; matrix products at "
        f"{CENTRAL.products:.0%} ({LOW.products:.0%} to {HIGH.products:.0%}) of {gpu.flops / 1e12:,.0f} "
        f"TFLOP/s, other kernels at {CENTRAL.elementwise:.0%} of {gpu.bandwidth / 1e12:.2f} TB/s"
        + (f", collectives at {CENTRAL.link:.0%} of {_link(gpu.link)}" if ranks > 1 else ""),
    ]


def speed_record(plan: MemoryPlan) -> dict[str, Any]:
    """The same for programs: empty without a GPU or a prediction."""
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
    """Three digits."""
    return f"{float(f'{number:.3g}'):,.0f}"


def _link(link: float) -> str:
    return f"{link / 1e9:.0f} GB/s (NVLink)" if link else f"{PCIE_LINK / 1e9:.0f} GB/s (PCIe)"
