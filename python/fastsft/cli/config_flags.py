"""The flag `--config` for commands that take some flags of training: their values come from a run's file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser, named_files

_OTHERS = ("help", "config", "seed")  # flags of commands that mean something else than in training


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--config FILE` to a parser."""
    parser.add_argument(
        "--config", metavar="FILE", help="YAML or JSON of a run, whose flags count here, too; flags win"
    )


def use_config(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> frozenset[str]:
    """Take defaults from the file that `--config` names, and from training if the file has no such flag.

    Return the names of the flags in the file; none without `--config`. If the file cannot be used, print the
    error and exit with status 2.
    """
    training = DataclassParser((ModelArguments, DataArguments, TrainingArguments, LoraArguments))
    try:
        files, _ = named_files(list(arguments), "--config", allow_abbrev=False)
        values = training.file_values(str(files[-1])) if files else None
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if values is None:
        return frozenset()
    fields = {action.dest for action in training._actions} - {*_OTHERS}
    for action in parser._actions:
        for name in {option.lstrip("-") for option in action.option_strings} & fields:
            action.default = values.get(name, training.get_default(name))
            action.required = action.required and name not in values
    return frozenset(values)
