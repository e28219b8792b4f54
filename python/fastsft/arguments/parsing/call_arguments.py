"""Arguments of a call from Python: words, a dictionary, or keyword arguments, instead of sys.argv."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fastsft.arguments.parsing.parser import DataclassParser


def read_arguments(
    parser: DataclassParser, arguments: Sequence[str] | Mapping[str, Any] | None, flags: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Instances of the parser's classes: of the program's command line when there is neither of the two.

    Values of names stay as they are; `model_name_or_path=Path(...)` is the path's text, and `config` a file
    of flags, which the other names win over. ValueError for an unknown name, for a name given twice, and for
    words next to keyword arguments.
    """
    if arguments is None and not flags:
        _check_no_kernel(sys.argv[0])
        return parser.parse_args_into_dataclasses()
    if isinstance(arguments, str):
        raise ValueError(
            f"expected a list of words or a dictionary of arguments, got the string {arguments!r}"
        )
    if arguments is not None and not isinstance(arguments, Mapping):
        if flags:
            raise ValueError("expected either words of a command line or keyword arguments, got both")
        words = [str(word) for word in arguments]
        return parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    twice = sorted(set(arguments or {}) & set(flags))
    if twice:
        raise ValueError(f"given twice, in the dictionary and as keyword arguments: {', '.join(twice)}")
    values = {name: _plain(value) for name, value in {**(arguments or {}), **flags}.items()}
    config = values.pop("config", None)
    of_file = parser.file_values(str(config)) if config is not None else {}
    return parser.parse_dict(
        {**of_file, **values}, given={name: str(config) for name in of_file if name not in values}
    )


def _check_no_kernel(program: str) -> None:
    """ValueError in a notebook, whose command line is its kernel's."""
    if os.path.basename(program).endswith("kernel_launcher.py"):
        raise ValueError(
            "a notebook has no command line with flags: train with fastsft.launch(model_name_or_path=..., "
            "data_path=..., output_dir=...), or give train() such arguments"
        )


def _plain(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
