"""The flag `--config` for commands that take some flags of training: their values come from a run's file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser, named_files
from fastsft.arguments.resolve import deepspeed_file
from fastsft.arguments.values import json_file_or_object

KINDS = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)
_STAGES = {0: "", 1: "shard_grad_op", 2: "shard_grad_op", 3: "full_shard"}  # of DeepSpeed's ZeRO
_OTHERS = ("help", "config", "seed")  # flags of commands that mean something else than in training


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--config FILE` to a parser."""
    parser.add_argument(
        "--config", metavar="FILE", help="YAML or JSON of a run, whose flags count here, too; flags win"
    )


def use_config(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> frozenset[str]:
    """Take defaults from the file that `--config` names, and from training if the file has no such flag.

    translate: makes the command's flags of the file's. Return the names of the flags in the file; none
    without `--config`. If the file cannot be used, print the error and exit with status 2.
    """
    training = DataclassParser(KINDS)
    try:
        files, _ = named_files(list(arguments), "--config", allow_abbrev=False)
        values = translate(training.file_values(str(files[-1]))) if files else None
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if values is None:
        return frozenset()
    use_values(parser, training, values)
    return frozenset(values)


def use_values(parser: argparse.ArgumentParser, training: DataclassParser, values: dict[str, Any]) -> None:
    """Take defaults from a run's values, and from training if there is no such value."""
    fields = ({action.dest for action in training._actions} | values.keys()) - {*_OTHERS}
    for action in parser._actions:
        for name in {option.lstrip("-") for option in action.option_strings} & fields:
            given = values.get(name)
            action.default = training.get_default(name) if given is None else given
            action.required = action.required and name not in values


def plan_values(given: dict[str, Any]) -> dict[str, Any]:
    """Return `fastsft plan`'s flags for a run's flags: its steps, and its sharding as `--fsdp`."""
    values = dict(given)
    if "gradient_accumulation_steps" in values:
        values["micro_batches"] = values["gradient_accumulation_steps"]
    if isinstance(values.get("fsdp"), list):
        values["fsdp"] = " ".join(values["fsdp"])
    if isinstance(values.get("fsdp_config"), dict):
        values["fsdp_config"] = json.dumps(values["fsdp_config"])
    if values.get("deepspeed"):
        values["fsdp"] = _sharding(values["deepspeed"])
    return values


def _sharding(value: object) -> str:
    """Return the `--fsdp` that a DeepSpeed file asks for."""
    config = deepspeed_file.one_spelling(json_file_or_object("deepspeed", value))
    zero = config.get("zero_optimization", {})
    strategy = _STAGES.get(zero.get("stage", 0), "")
    return f"{strategy} offload" if strategy and any(deepspeed_file.offload(zero).values()) else strategy
