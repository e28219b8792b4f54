"""Resolves the arguments about logs, trackers, checkpoints, uploads and the handling of faults."""

from __future__ import annotations

import os
import socket
from datetime import datetime
from pathlib import Path

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.resolve.training import resolve_cadence
from fastsft.arguments.support import rejection
from fastsft.arguments.values import parse_size, parse_steps
from fastsft.runtime.messages import warn_once
from fastsft.runtime.timeouts import parse_timeouts
from fastsft.trackers.tracker import resolve_trackers

_COUNTING = {"all": "all", "non_padding": "non_padding", "true": "all", "no": "no", "false": "no"}


def resolve_reports(args: ArgumentFields) -> None:
    """Resolve the trackers, the logging directory, the logging interval and the token counting mode."""
    parse_steps(args.profile_steps)
    args.debug = []
    if args.disable_tqdm is None:
        args.disable_tqdm = False
    args.report_to = resolve_trackers(args.report_to)
    args.logging_dir = os.path.expanduser(args.logging_dir or default_logging_dir(args.output_dir or "."))
    if args.logging_strategy == "steps" and args.logging_steps == 0:
        raise ValueError(
            "--logging_strategy steps needs --logging_steps above 0; --logging_strategy no logs nothing"
        )
    resolve_cadence(args, "logging")
    _resolve_counting(args)


def default_logging_dir(output_dir: str) -> str:
    """Return TENSORBOARD_LOGGING_DIR if set, else <output_dir>/runs/<date>_<host> as in transformers 4.57."""
    stamp = datetime.now().strftime("%b%d_%H-%M-%S")
    own = str(Path(output_dir) / "runs" / f"{stamp}_{socket.gethostname()}")
    return os.environ.get("TENSORBOARD_LOGGING_DIR") or own


def _resolve_counting(args: ArgumentFields) -> None:
    given = str(args.include_num_input_tokens_seen).lower()
    if given not in _COUNTING:
        raise ValueError(
            "--include_num_input_tokens_seen: expected all, non_padding, no or a boolean, got "
            f"{args.include_num_input_tokens_seen!r}"
        )
    args.include_num_input_tokens_seen = _COUNTING[given]


def resolve_checkpoints(args: ArgumentFields) -> None:
    """Check the size and format of model files, and the checkpoint interval."""
    parse_size(args.max_shard_size)
    if args.save_safetensors is False:
        raise ValueError(
            "fastsft does not support --save_safetensors False; leave it unset: safetensors is written"
        )
    resolve_cadence(args, "save")


def resolve_faults(args: ArgumentFields) -> None:
    """Raise ValueError for limits that are out of range, and for rollback without checkpoints."""
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


def resolve_hub(args: ArgumentFields) -> None:
    """Check the upload strategy, and move the values of old field names to the new fields."""
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        raise ValueError(rejection("hub_strategy", args.hub_strategy, "use --hub_strategy every_save"))
    if args.push_to_hub_token is not None:
        args.hub_token = args.push_to_hub_token
    name = args.push_to_hub_model_id
    if name is None and args.push_to_hub_organization is not None:
        name = (args.hub_model_id or args.output_dir or "").rstrip("/").split("/")[-1]
    if name is not None:
        owner = args.push_to_hub_organization
        args.hub_model_id = f"{owner}/{name}" if owner else name
        warn_once(f"--push_to_hub_* are old names of --hub_*; the repository is {args.hub_model_id}")
