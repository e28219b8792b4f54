"""Old names of uploads, and strategies."""

from __future__ import annotations

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.treatment import refusal
from fastsft.runtime.messages import warn_once


def settle_hub(args: ArgumentFields) -> None:
    """Old names mean the new ones; two of the four strategies are done."""
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        raise ValueError(refusal("hub_strategy", args.hub_strategy, "use --hub_strategy every_save"))
    if args.push_to_hub_token is not None:
        args.hub_token = args.push_to_hub_token
    name = args.push_to_hub_model_id
    if name is None and args.push_to_hub_organization is not None:
        name = (args.hub_model_id or args.output_dir or "").rstrip("/").split("/")[-1]
    if name is not None:
        owner = args.push_to_hub_organization
        args.hub_model_id = f"{owner}/{name}" if owner else name
        warn_once(f"--push_to_hub_* are old names of --hub_*; the repository is {args.hub_model_id}")
