"""`fastsft convert IN OUT`: a model directory or a checkpoint as a new model directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fastsft import _C
from fastsft.arguments.values import parse_size
from fastsft.cli.command_parser import CommandParser
from fastsft.cli.inspect import complain, say
from fastsft.cli.trust import add_trust
from fastsft.model.conversion import convert_model
from fastsft.planning.devices import size_text
from fastsft.runtime.terminal import visible


def main(arguments: Sequence[str]) -> int:
    """0: written; 1: not, with the reason; 2: wrong usage."""
    args = parse(arguments)
    try:
        size = parse_size(args.max_shard_size)
        made = convert_model(
            args.source, args.target, args.dtype, size, trust_remote_code=args.trust_remote_code
        )
    except (ValueError, OSError, _C.FileError) as error:
        complain("convert", error)
        return 1
    for name in made.left_out:
        say(visible(f"left out: {name}, which the model does not need"))
    files = f"{made.files} file{'' if made.files == 1 else 's'}"
    say(visible(f"written: {made.directory}: {made.tensors} tensors, {size_text(made.bytes)}, {files}"))
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="fastsft convert",
        description=__doc__,
        epilog="One tensor is in memory at a time. OUT appears whole or not at all; nothing is overwritten.",
    )
    parser.add_argument("source", metavar="IN", type=Path, help="a model directory, or output/checkpoint-N")
    parser.add_argument("target", metavar="OUT", type=Path, help="a directory that is not there yet")
    parser.add_argument(
        "--dtype",
        choices=["bfloat16", "float16", "float32"],
        help="of the tensors, rounded to nearest even; default: as they are stored",
    )
    parser.add_argument(
        "--max_shard_size", default="5GB", help="largest weight file; default %(default)s, in decimal units"
    )
    add_trust(parser)
    return parser.parse_args(arguments)
