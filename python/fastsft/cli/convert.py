"""`fastsft convert` and `fastsft merge`: write a trained model as a new model directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fastsft import _C
from fastsft.arguments.parsing.wrong_values import dtype_name
from fastsft.arguments.resolve.notices import small_files
from fastsft.arguments.values import parse_size
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.cli.places import model_place
from fastsft.cli.trust import add_trust
from fastsft.lora.merge import merge_adapter
from fastsft.model.conversion import Converted, convert_model
from fastsft.planning.devices import size_text
from fastsft.runtime.terminal import visible

_CONVERT = "`fastsft convert IN OUT`: a model directory or a checkpoint as a new model directory."
_MERGE = "`fastsft merge ADAPTER OUT`: a LoRA adapter and its base model as one model directory."


def main(arguments: Sequence[str]) -> int:
    """Run `fastsft convert`; return 0 if OUT was written, 1 if not, 2 for wrong usage."""
    args = _parse_convert(arguments)
    try:
        size = parse_size(args.max_shard_size)
        made = convert_model(
            model_place(args.source, has_code=args.trust_remote_code), args.target, args.dtype, size,
            trust_remote_code=args.trust_remote_code,
        )  # fmt: skip
    except (ValueError, OSError, _C.FileError) as error:
        print_error("convert", error)
        return 1
    for notice in small_files(args.max_shard_size):
        print_line(visible(notice))
    for name in made.left_out:
        print_line(visible(f"left out: {name}, which the model does not need"))
    _print_written(made)
    return 0


def merge(arguments: Sequence[str]) -> int:
    """Run `fastsft merge`; return an exit status as `main` does."""
    args = _parse_merge(arguments)
    try:
        size = parse_size(args.max_shard_size)
        if not Path(args.adapter).exists() and (args.target / "adapter_config.json").is_file():
            raise ValueError(
                f"expected the adapter first, got {args.adapter} {args.target}; write fastsft merge "
                f"{args.target} {args.adapter}"
            )
        made = merge_adapter(
            model_place(args.adapter),
            args.target,
            args.base_model_path,
            dtype=args.dtype,
            max_shard_size=size,
        )
    except (ValueError, OSError, _C.FileError) as error:
        print_error("merge", error)
        return 1
    _print_written(made)
    return 0


def _print_written(made: Converted) -> None:
    files = f"{made.files} file{'' if made.files == 1 else 's'}"
    print_line(
        visible(f"written: {made.directory}: {made.tensors} tensors, {size_text(made.bytes)}, {files}")
    )


def _parse_convert(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="fastsft convert",
        description=_CONVERT,
        epilog="One tensor is in memory at a time. OUT appears whole or not at all; nothing is overwritten.",
    )
    parser.add_argument("source", metavar="IN", help="a model directory, output/checkpoint-N, or a hub name")
    parser.add_argument("target", metavar="OUT", type=Path, help="a directory that is not there yet")
    _add_weight_flags(parser, "of the tensors, rounded to nearest even; default: as they are stored")
    add_trust(parser)
    return parser.parse_args(arguments)


def _parse_merge(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse ADAPTER and OUT, given as positional arguments or by the flags of FastChat's apply_lora."""
    parser = CommandParser(
        prog="fastsft merge",
        description=_MERGE,
        epilog="W + scale B A is summed in float32 and rounded once; one tensor of the base is in memory at "
        "a time. OUT appears whole or not at all; nothing is overwritten.",
    )
    parser.add_argument("places", metavar="ADAPTER OUT", nargs="*", help="the two directories")
    parser.add_argument("--lora-path", help="the adapter's directory, as peft or fastsft saved it")
    parser.add_argument("--target-model-path", help="a directory that is not there yet")
    parser.add_argument("--base-model-path", help="default: the model that adapter_config.json names")
    _add_weight_flags(
        parser, "of the tensors; default: as the base model's are stored (FastChat's apply_lora: float16)"
    )
    args = parser.parse_args(arguments)
    named = [args.lora_path, args.target_model_path]
    if args.places and any(path is not None for path in named):
        parser.error("give ADAPTER and OUT, or --lora-path and --target-model-path, not both")
    paths = args.places or [path for path in named if path is not None]
    if len(paths) != 2:
        parser.error(
            f"expected two directories, ADAPTER and OUT, got {' '.join(paths) or 'none'}; {_way(paths)}"
        )
    args.adapter, args.target = paths[0], Path(paths[1])
    return args


def _way(paths: Sequence[str]) -> str:
    """Return the way out for another number of directories than two."""
    return (
        "a base model is given as --base-model-path DIR"
        if len(paths) > 2
        else "write fastsft merge ADAPTER OUT"
    )


def _add_weight_flags(parser: argparse.ArgumentParser, dtype_help: str) -> None:
    parser.add_argument(
        "--dtype", type=dtype_name, choices=["bfloat16", "float16", "float32"], help=dtype_help
    )
    parser.add_argument(
        "--max_shard_size", default="5GB", help="largest weight file; default %(default)s, in decimal units"
    )
