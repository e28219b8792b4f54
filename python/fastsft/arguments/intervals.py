"""Steps between logs, evaluations and checkpoints."""

from __future__ import annotations

from typing import Literal

Interval = Literal["no", "steps", "epoch"]
SaveInterval = Literal["no", "steps", "epoch", "best"]


def settle_cadence(args: object, kind: str) -> None:
    """`kind`_steps of a strategy by steps: above 0, whole when above 1; else ValueError."""
    steps = getattr(args, f"{kind}_steps")
    if getattr(args, f"{kind}_strategy") != "steps":
        return
    if steps <= 0:
        raise ValueError(f"--{kind}_steps: expected a number above 0, got {steps}")
    if steps > 1:
        if steps != int(steps):
            raise ValueError(f"--{kind}_steps must be an integer if bigger than 1: {steps}")
        setattr(args, f"{kind}_steps", int(steps))
