"""Reads arguments that are passed to `train` in Python, and checks some before ranks are started."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.lora import LoraScriptArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.arguments.values import checked_value


def read_arguments(
    parser: DataclassParser, arguments: Sequence[str] | Mapping[str, Any] | None, flags: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return instances of the parser's classes; they are read from sys.argv if no arguments are passed.

    arguments: words of a command line, or a dictionary. flags: keyword arguments. Values keep their types,
    but paths become strings. If `config` names a file, other arguments take precedence over its values.
    ValueError for an unknown name, a name given twice, or words together with keyword arguments.
    """
    if arguments is None and not flags:
        _check_no_kernel(sys.argv[0])
        return parser.parse_args_into_dataclasses()
    if isinstance(arguments, str):
        raise ValueError(
            f"expected a list of words or a dictionary of arguments, got the string {arguments!r}; write "
            'train(model_name_or_path="DIR", data_path="FILE", output_dir="OUT")'
        )
    if arguments is not None and not isinstance(arguments, Mapping):
        if not isinstance(arguments, Iterable):
            raise TypeError(
                f"expected a list of words or a dictionary of arguments, got {arguments!r:.60}; write "
                'train(model_name_or_path="DIR", data_path="FILE", output_dir="OUT")'
            )
        if flags:
            raise ValueError("expected either words of a command line or keyword arguments, got both")
        argv = [str(word) for word in arguments]
        return parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    twice = sorted(set(arguments or {}) & set(flags))
    if twice:
        raise ValueError(
            f"given twice, in the dictionary and as keyword arguments: {', '.join(twice)}; leave one of "
            "them out"
        )
    values = {name: _plain(value) for name, value in {**(arguments or {}), **flags}.items()}
    config = values.pop("config", None)
    file_values = parser.file_values(str(config)) if config is not None else {}
    return parser.parse_dict(
        {**file_values, **values}, given={name: str(config) for name in file_values if name not in values}
    )


def _check_no_kernel(program: str) -> None:
    """Raise ValueError in a notebook, where sys.argv belongs to the kernel."""
    if os.path.basename(program).endswith("kernel_launcher.py"):
        raise ValueError(
            "a notebook has no command line with flags: train with fastsft.launch(model_name_or_path=..., "
            "data_path=..., output_dir=...), or give train() such arguments"
        )


def _plain(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


_NAMES = ("use_cpu", "no_cuda")  # the new and the old name of the same field


def chooses_cpu(arguments: Sequence[str] | Mapping[str, Any], args_file: Path | None = None) -> bool:
    """True if --use_cpu or --no_cuda is true in a command line or a dictionary of arguments.

    The --config file and `args_file` are read as the run reads them; other flags take precedence over both.
    ValueError for words that the parser rejects.
    """
    parser = _parser()
    if isinstance(arguments, Mapping):
        config = arguments.get("config")
        values = {**(parser.file_values(str(config)) if config is not None else {}), **arguments}
    else:
        values = vars(parser.parse_values(arguments, [] if args_file is None else [args_file])[0])
    return any(checked_value(TrainingArguments, name, values.get(name, False)) for name in _NAMES)


def check_names(values: Mapping[str, Any]) -> None:
    """Raise ValueError, with hints, for names that are not arguments of training."""
    _parser().check_names(set(values) - {"config"})


def _parser() -> DataclassParser:
    return _Parser((ModelArguments, DataArguments, TrainingArguments, LoraScriptArguments), add_help=False)


class _Parser(DataclassParser):
    """Parser that raises errors instead of printing them, because the run reports them itself."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
