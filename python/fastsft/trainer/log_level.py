"""--log_level and --log_level_replica on the loggers of this process."""

from __future__ import annotations

import logging

from fastsft.arguments import TrainingArguments


def use_log_level(args: TrainingArguments) -> None:
    """Set the level of the logger fastsft as the arguments say; `passive` leaves it as the program set it."""
    name = args.log_level if args.should_log else args.log_level_replica
    if name != "passive":
        logging.getLogger("fastsft").setLevel(args.get_process_log_level())
