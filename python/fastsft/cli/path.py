"""`fastsft path NAME`: the file of a training module, for launchers that are given a path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import fastsft
from fastsft.cli.command_parser import CommandParser

MODULES = ("train", "train_mem", "train_xformers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the absolute path of the module's file; 0 done, 2 for another name."""
    parser = CommandParser(
        prog="fastsft path",
        description='The file of a training module: torchrun "$(fastsft path train_mem)" FLAGS',
    )
    parser.add_argument("name", choices=MODULES, metavar="NAME", help=", ".join(MODULES))
    name = parser.parse_args(arguments).name
    print(Path(fastsft.__file__).with_name(f"{name}.py").absolute())
    return 0
