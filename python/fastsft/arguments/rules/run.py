"""Directory, length, resuming."""

from __future__ import annotations

import os

from fastsft.arguments.fields import ArgumentFields
from fastsft.runtime.regular_files import check_name


def settle_run(args: ArgumentFields) -> None:
    """The directory; the words True (the newest checkpoint) and False (none) instead of a checkpoint."""
    args.output_dir = os.path.expanduser(args.output_dir or "trainer_output")
    for name in ("output_dir", "resume_from_checkpoint"):
        if isinstance(path := getattr(args, name), str):
            check_name(path, f"--{name}")
    if args.max_steps == 0:
        raise ValueError(
            "--max_steps: expected the number of steps, or -1 for num_train_epochs, got 0, with which "
            "transformers trains one step; Trainer(...).evaluate() evaluates without training"
        )
    if args.max_steps <= 0 and args.num_train_epochs <= 0:
        raise ValueError(
            f"--num_train_epochs: expected more than 0, got {args.num_train_epochs}; or give "
            "--max_steps above 0; Trainer(...).evaluate() evaluates without training"
        )
    word = str(args.resume_from_checkpoint).lower()
    if word == "true":
        args.resume_from_checkpoint = True  # type: ignore[assignment]
    elif word == "false":
        args.resume_from_checkpoint, args.no_resume = None, True
