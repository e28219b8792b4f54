"""Rules for the arguments of checkpoints."""

from __future__ import annotations

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.intervals import settle_cadence
from fastsft.arguments.sizes import parse_size


def settle_checkpoints(args: ArgumentFields) -> None:
    """Only safetensors are written."""
    parse_size(args.max_shard_size)
    if args.save_safetensors is False:
        raise ValueError(
            "fastsft does not support --save_safetensors False; leave it unset: safetensors is written"
        )
    settle_cadence(args, "save")
