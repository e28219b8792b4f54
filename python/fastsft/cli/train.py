"""`fastsft train`: the training command, the same as `python -m fastsft.train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.program.self_launch import asks_for_help
from fastsft.runtime.search_path import child_environment, python_command


def main(arguments: Sequence[str]) -> int:
    """Replace this process by `python -m fastsft.train`, but print help without importing training code."""
    if asks_for_help(arguments):
        classes = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)
        parser = DataclassParser(classes, prog="fastsft train")
        parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    command = [*python_command("fastsft.train"), *arguments]
    os.execve(command[0], command, child_environment())
