"""`fastsft convert`, `fastsft merge` and `fastsft export`: write a trained model in another form."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fastsft import _C
from fastsft.arguments.parsing.wrong_values import dtype_name
from fastsft.arguments.values import parse_size
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.cli.places import model_place
from fastsft.cli.trust import add_trust
from fastsft.data.chat.template_saving import OllamaTemplate, ollama_template
from fastsft.lora.merge import merge_adapter
from fastsft.model.conversion import Converted, convert_model
from fastsft.model.not_a_model import no_config
from fastsft.planning.devices import size_text
from fastsft.runtime.output_files import check_output_file, replace_file
from fastsft.runtime.terminal import visible
from fastsft.tokenizer.tokenizer import Tokenizer

_CONVERT = "`fastsft convert IN OUT`: a model directory or a checkpoint as a new model directory."
_MERGE = "`fastsft merge ADAPTER OUT`: a LoRA adapter and its base model as one model directory."
_EXPORT = "`fastsft export ollama DIR`: a Modelfile with which Ollama serves a trained model."


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
    for name in made.left_out:
        print_line(visible(f"left out: {name}, which the model does not need"))
    _print_written(made)
    return 0


def merge(arguments: Sequence[str]) -> int:
    """Run `fastsft merge`; return an exit status as `main` does."""
    args = _parse_merge(arguments)
    try:
        size = parse_size(args.max_shard_size)
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
        parser.error("expected two directories, ADAPTER and OUT")
    args.adapter, args.target = paths[0], Path(paths[1])
    return args


def _add_weight_flags(parser: argparse.ArgumentParser, dtype_help: str) -> None:
    parser.add_argument(
        "--dtype", type=dtype_name, choices=["bfloat16", "float16", "float32"], help=dtype_help
    )
    parser.add_argument(
        "--max_shard_size", default="5GB", help="largest weight file; default %(default)s, in decimal units"
    )


def export(arguments: Sequence[str]) -> int:
    """Run `fastsft export`; return an exit status as `main` does."""
    args = _parse_export(arguments)
    try:
        given, args.directory = Path(args.directory), model_place(args.directory)
        folder = args.directory if given.expanduser() == args.directory else Path()  # not the hub's cache
        out = folder / "Modelfile" if args.output is None else args.output
        if not (args.directory / "config.json").is_file():
            raise no_config(args.directory)
        check_output_file(out, "--output")
        if os.path.lexists(out) and not args.overwrite:
            raise ValueError(f"{out} exists; choose another --output, or give --overwrite to replace it")
        template = ollama_template(Tokenizer.from_pretrained(args.directory))
        replace_file(out, modelfile(template, os.path.abspath(args.directory)))
    except (ValueError, RuntimeError, OSError, _C.FileError) as error:
        print_error("export", error)
        return 1
    for note in template.notes:
        print_line(visible(note))
    print_line(visible(f"written: {out}; ollama create NAME -f {out}"))
    return 0


def modelfile(template: OllamaTemplate, directory: str) -> str:
    """Return the text of a Modelfile. ValueError if the format cannot express the path or the stop text."""
    for text in (directory, template.stop):
        if '"' in text or "\n" in text:
            raise ValueError(f"a Modelfile cannot hold {text!r}: it has a quotation mark or a line break")
    return f'FROM {directory}\nTEMPLATE """{template.text}"""\nPARAMETER stop "{template.stop}"\n'


def _parse_export(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="fastsft export",
        description=_EXPORT,
        epilog="The template writes what the model read before each reply in training.",
    )
    parser.add_argument("format", choices=["ollama"])
    parser.add_argument("directory", metavar="DIR", help="a trained model directory, or a hub name")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: DIR/Modelfile, or here for a hub model"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE where it exists")
    return parser.parse_args(arguments)
