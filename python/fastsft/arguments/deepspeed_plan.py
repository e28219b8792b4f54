"""The settings that a DeepSpeed file asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeepSpeedPlan:
    """Meaning of a DeepSpeed file here: stage, strategy, state on the host, saved dtype, schedule.

    scheduler: the section of that name, or None where the flags choose the schedule.
    """

    stage: int
    strategy: str
    offload: bool
    saves_16bit: bool
    scheduler: dict[str, Any] | None
