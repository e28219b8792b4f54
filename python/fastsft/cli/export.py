"""`fastsft export ollama DIR`: a Modelfile with which Ollama serves a trained model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fastsft import _C
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.data.chat.ollama import OllamaTemplate, ollama_template
from fastsft.runtime.output_files import check_output_file, replace_file
from fastsft.runtime.terminal_text import visible
from fastsft.tokenizer.tokenizer import Tokenizer


def main(arguments: Sequence[str]) -> int:
    """0: written; 1: not, with the reason; 2: wrong usage."""
    args = parse(arguments)
    out = args.directory / "Modelfile" if args.output is None else args.output
    try:
        if not (args.directory / "config.json").is_file():
            raise ValueError(
                f"{args.directory}: expected a model directory, found no config.json"
                f"{_way_out(args.directory)}"
            )
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


def _way_out(directory: Path) -> str:
    if not (directory / "adapter_config.json").is_file():
        return ""
    return "; it has a LoRA adapter: fastsft merge makes a model of it and its base, which can be exported"


def modelfile(template: OllamaTemplate, directory: str) -> str:
    """The text of a Modelfile. ValueError for a path or stop text that it cannot hold."""
    for text in (directory, template.stop):
        if '"' in text or "\n" in text:
            raise ValueError(f"a Modelfile cannot hold {text!r}: it has a quotation mark or a line break")
    return f'FROM {directory}\nTEMPLATE """{template.text}"""\nPARAMETER stop "{template.stop}"\n'


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="fastsft export",
        description=__doc__,
        epilog="The template writes what the model read before each reply in training.",
    )
    parser.add_argument("format", choices=["ollama"])
    parser.add_argument("directory", metavar="DIR", type=Path, help="a trained model directory")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: DIR/Modelfile")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE where it exists")
    return parser.parse_args(arguments)
