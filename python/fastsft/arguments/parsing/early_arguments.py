"""Arguments that are read before the ranks of a run are started: names, and whether it uses the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.lora import LoraScriptArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.arguments.values import checked_value

_NAMES = ("use_cpu", "no_cuda")  # the new name and the old one


def chooses_cpu(arguments: Sequence[str] | Mapping[str, Any], args_file: Path | None = None) -> bool:
    """True if --use_cpu or --no_cuda is true among the words of a command line, or among names and values.

    All that the run itself reads is read, by its own rules: a file of --config, and `args_file`, which
    comes before the words. ValueError for words that the parser does not take.
    """
    parser = _parser()
    if isinstance(arguments, Mapping):
        config = arguments.get("config")
        values = {**(parser.file_values(str(config)) if config is not None else {}), **arguments}
    else:
        values = vars(parser.parse_values(arguments, [] if args_file is None else [args_file])[0])
    return any(checked_value(TrainingArguments, name, values.get(name, False)) for name in _NAMES)


def check_names(values: Mapping[str, Any]) -> None:
    """ValueError for names that are no arguments of training, with the nearest ones."""
    _parser().check_names(set(values) - {"config"})


def _parser() -> DataclassParser:
    return _Parser((ModelArguments, DataArguments, TrainingArguments, LoraScriptArguments), add_help=False)


class _Parser(DataclassParser):
    """Says nothing: what it stumbles over, the run will report."""

    def error(self, message: str) -> NoReturn:
        """Instead of usage and an exit."""
        raise ValueError(message)
