"""Trackers, logs, counts."""

from __future__ import annotations

import os
import socket
from datetime import datetime
from pathlib import Path

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.intervals import settle_cadence
from fastsft.arguments.sizes import parse_steps
from fastsft.trackers.tracker import resolve_trackers

_COUNTING = {"all": "all", "non_padding": "non_padding", "true": "all", "no": "no", "false": "no"}


def settle_reports(args: ArgumentFields) -> None:
    """Trackers as a list; logging by steps has a cadence; what is counted."""
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
    settle_cadence(args, "logging")
    _settle_counting(args)


def default_logging_dir(output_dir: str) -> str:
    """TENSORBOARD_LOGGING_DIR, or <output_dir>/runs/<date>_<host> as transformers 4.57 names it."""
    stamp = datetime.now().strftime("%b%d_%H-%M-%S")
    own = str(Path(output_dir) / "runs" / f"{stamp}_{socket.gethostname()}")
    return os.environ.get("TENSORBOARD_LOGGING_DIR") or own


def _settle_counting(args: ArgumentFields) -> None:
    given = str(args.include_num_input_tokens_seen).lower()
    if given not in _COUNTING:
        raise ValueError(
            "--include_num_input_tokens_seen: expected all, non_padding, no or a boolean, got "
            f"{args.include_num_input_tokens_seen!r}"
        )
    args.include_num_input_tokens_seen = _COUNTING[given]
