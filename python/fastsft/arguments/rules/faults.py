"""Limits of what a run does about faults."""

from __future__ import annotations

from fastsft.arguments.fields import ArgumentFields
from fastsft.runtime.timeouts import parse_timeouts


def settle_faults(args: ArgumentFields) -> None:
    """ValueError for limits that mean nothing."""
    parse_timeouts(args.phase_timeouts)
    for name, least in (("max_nonfinite_skips", 0), ("loss_spike_patience", 1), ("replay_check", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name}: expected at least {least}, got {getattr(args, name)}")
    if args.loss_spike_factor != 0 and args.loss_spike_factor <= 1:
        raise ValueError(
            f"--loss_spike_factor: expected 0 (off) or a factor above 1, got {args.loss_spike_factor}"
        )
    if args.on_nonfinite == "rollback" and args.save_strategy == "no":
        raise ValueError(
            "--on_nonfinite rollback goes back to checkpoints, and --save_strategy no writes none; "
            "use --save_strategy steps or --on_nonfinite skip"
        )
