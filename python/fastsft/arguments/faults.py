"""Arguments about bad numbers, wrong bits and ranks that are stuck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.support import used


@dataclass
class FaultArguments:
    """Answers to steps that are not finite, loss spikes, silent faults and silence."""

    on_nonfinite: Literal["stop", "skip", "rollback"] = used(
        "stop",
        "after a step whose loss or gradient is not finite: end the run; go on without it; or go back to the "
        "last checkpoint and leave the group out",
        "such a step changes no weight",
    )
    max_nonfinite_skips: int = used(10, "groups that a run may leave out before it stops")
    loss_spike_factor: float = used(
        0.0, "a step with a loss above this many times the mean of the last 32 changes no weight; 0 is off"
    )
    loss_spike_patience: int = used(3, "spikes in a row that --on_nonfinite answers; fewer are left out")
    replay_check: int = used(
        0, "every so many steps compute one twice and compare the bits, on all ranks; 0 is off"
    )
    phase_timeouts: str | None = used(
        None,
        "seconds without progress after which a stuck rank ends, by phase: "
        "init=300,data=600,first_step=600,step=60,save=600,evaluation=60; unnamed: --ddp_timeout",
    )
