"""What becomes of a command line of training before anything is read: refused, told of, or taken."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any, NamedTuple

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.lora.attach import requested_settings
from fastsft.runtime.messages import collected
from fastsft.trainer.schedule import check_schedule

CLASSES = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)


class Outcome(NamedTuple):
    """`kind`: refused, told or taken. `text`: the message or the lines. `values`: of every field, settled."""

    kind: str
    text: str
    values: dict[str, Any]


def outcome_of(line: str) -> Outcome:
    """Of the flags in `line`, by the checks that training makes before it reads a file."""
    parser = DataclassParser(CLASSES, prog="train")
    words = ["--use_cpu", "--logging_dir", "x", *shlex.split(line)]
    with collected() as said:
        try:
            made = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
            _, data, args, lora = made
            data.check_flags()
            check_schedule(args)
            if lora.lora:
                requested_settings(lora, None)
        except ValueError as error:
            return Outcome("refused", str(error), {})
    values = {
        field.name: getattr(each, field.name)
        for each in made
        for field in dataclasses.fields(each)
        if field.init
    }
    return Outcome("told" if said.warned else "taken", "; ".join(said.warned), values)
