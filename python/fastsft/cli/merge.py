"""`fastsft merge ADAPTER OUT`: a LoRA adapter and its base model as one model directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fastsft import _C
from fastsft.arguments.values import parse_size
from fastsft.cli.command_parser import CommandParser
from fastsft.cli.inspect import complain, say
from fastsft.lora.merge import merge_adapter
from fastsft.planning.devices import size_text
from fastsft.runtime.terminal import visible


def main(arguments: Sequence[str]) -> int:
    """0: written; 1: not, with the reason; 2: wrong usage."""
    args = parse(arguments)
    try:
        made = merge_adapter(
            args.adapter,
            args.target,
            args.base,
            dtype=args.dtype,
            max_shard_size=parse_size(args.max_shard_size),
        )
    except (ValueError, OSError, _C.FileError) as error:
        complain("merge", error)
        return 1
    files = f"{made.files} file{'' if made.files == 1 else 's'}"
    say(visible(f"written: {made.directory}: {made.tensors} tensors, {size_text(made.bytes)}, {files}"))
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """ADAPTER and OUT by place, or by the names of FastChat's apply_lora."""
    parser = CommandParser(
        prog="fastsft merge",
        description=__doc__,
        epilog="W + scale B A is summed in float32 and rounded once; one tensor of the base is in memory at "
        "a time. OUT appears whole or not at all; nothing is overwritten.",
    )
    parser.add_argument("places", metavar="ADAPTER OUT", nargs="*", type=Path, help="the two directories")
    parser.add_argument("--lora-path", type=Path, help="the adapter's directory, as peft or fastsft saved it")
    parser.add_argument("--target-model-path", type=Path, help="a directory that is not there yet")
    parser.add_argument("--base-model-path", help="default: the model that adapter_config.json names")
    parser.add_argument(
        "--dtype",
        choices=["bfloat16", "float16", "float32"],
        help="of the tensors; default: as the base model's are stored (FastChat's apply_lora: float16)",
    )
    parser.add_argument(
        "--max_shard_size", default="5GB", help="largest weight file; default %(default)s, in decimal units"
    )
    args = parser.parse_args(arguments)
    named = [args.lora_path, args.target_model_path]
    if args.places and any(path is not None for path in named):
        parser.error("give ADAPTER and OUT, or --lora-path and --target-model-path, not both")
    paths = args.places or [path for path in named if path is not None]
    if len(paths) != 2:
        parser.error("expected two directories, ADAPTER and OUT")
    args.adapter, args.target = paths
    args.base = args.base_model_path
    return args
