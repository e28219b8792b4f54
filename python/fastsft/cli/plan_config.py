"""Reads a `--config` file of training for `fastsft plan`, which takes the flags that memory depends on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.arguments.resolve import deepspeed_file
from fastsft.arguments.values import json_file_or_object
from fastsft.cli.command_parser import CommandParser

CLASSES = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)
# flag of training -> the flag of `fastsft plan`, if it has another name there
_NAMES = {"model_name_or_path": "model", "gradient_accumulation_steps": "micro_batches"}
_STAGES = {0: "", 1: "shard_grad_op", 2: "shard_grad_op", 3: "full_shard"}


def parse_with_config(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments, with the values of the file of `--config` as defaults.

    The result's `from_config` has the names of the flags in the file. ValueError if training rejects it.
    """
    finder = CommandParser(prog=parser.prog, add_help=False)
    finder.add_argument("--config")
    path = finder.parse_known_args(arguments)[0].config
    taken = {action.dest: action for action in parser._actions}
    values = {} if path is None else _values(path)
    defaults = {name: value for name, value in values.items() if name in taken and value is not None}
    if path is not None:  # the run's rows, not those that plan takes without a file
        defaults.setdefault("model_max_length", DataclassParser(CLASSES).get_default("model_max_length"))
    parser.set_defaults(**defaults)
    for name in defaults:
        taken[name].required = False
    args = parser.parse_args(arguments)
    args.from_config = frozenset(defaults)
    return args


def _values(path: str) -> dict[str, Any]:
    given = DataclassParser(CLASSES).file_values(path)
    values = {_NAMES.get(name, name): value for name, value in given.items()}
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
    is_offloaded = any(deepspeed_file.offload(zero).values())
    return f"{strategy} offload" if strategy and is_offloaded else strategy
