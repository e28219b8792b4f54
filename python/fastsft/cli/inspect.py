"""`fastsft inspect`: the conversations of a file with what is learned marked, and why the rest is not."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from fastsft import _C
from fastsft.arguments.parsing.options import DATA_NAMES
from fastsft.cli.command_parser import CommandParser
from fastsft.cli.label_arguments import add_label_arguments, setup_from
from fastsft.inspection.inspection_text import inspection_text
from fastsft.runtime.output_files import write_for_flag
from fastsft.runtime.terminal import fitted, has_colour, terminal_width, visible
from fastsft.sources.data_files import data_files


def main(arguments: Sequence[str]) -> int:
    """0: something is learned; 1: nothing is, or training would stop at a record; 2: wrong usage."""
    args = parse(arguments)
    try:
        seed = 0 if args.random and args.seed is None else args.seed
        choice = _C.SurveyChoice(count=args.n, seed=seed, id=args.record, only=args.only)
        data_files(args.data)
        setup = setup_from(args, args.data)
    except (ValueError, OSError) as error:
        complain("inspect", error)
        return 2
    try:
        inspection = setup.survey(
            args.data,
            choice,
            show_progress=True,
            max_record_bytes=args.max_record_bytes,
            data_format=args.data_format,
        )
    except (ValueError, OSError) as error:
        complain("inspect", error)
        return 1
    if args.record is not None and not inspection.records:
        complain("inspect", f"no record of {args.data} has the id or number {args.record}")
        return 2
    colour, width = has_colour(sys.stdout, args.color), terminal_width(sys.stdout)
    say(inspection_text(inspection, colour=colour, tokens=args.tokens, width=width))
    if args.html and not write_page(args.html, inspection.html()):
        return 2
    return 0 if inspection.is_learnable else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(prog="fastsft inspect", description=__doc__)
    parser.add_argument(
        *DATA_NAMES, dest="data", metavar="FILE", required=True,
        help="files, patterns, weights, - for stdin",
    )  # fmt: skip
    add_label_arguments(parser)
    parser.add_argument("-n", type=int, default=5, help="how many records to show; default %(default)s")
    parser.add_argument(
        "--record", metavar="ID", help="the record with this id, or with this number in its file"
    )
    parser.add_argument(
        "--only",
        metavar="WHAT",
        help="records that are dropped, truncated, stopped, ..., or by reason: empty_user, ...",
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--first", action="store_true", help="show the first records; the default")
    order.add_argument("--random", action="store_true", help="show random ones")
    parser.add_argument("--seed", type=int, help="of --random, which it implies; default 0")
    parser.add_argument("--tokens", action="store_true", help="every token with its id and bytes")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page for a browser")
    parser.add_argument("--color", choices=["auto", "always", "never"], default="auto")
    args = parser.parse_args(arguments)
    if args.first and args.seed is not None:
        parser.error("--first and --seed contradict each other")
    if args.seed is not None and args.seed < 0:
        parser.error(f"--seed: expected 0 or more, got {args.seed}")
    return args


def write_page(path: Path, page: str) -> bool:
    """False, with a line that says why, when the file cannot be written."""
    try:
        write_for_flag(path, page, "--html")
    except (OSError, ValueError) as error:
        complain("inspect", str(error) if isinstance(error, ValueError) else f"--html: {error}")
        return False
    say(visible(f"written: {path}"))
    return True


def complain(command: str, error: object) -> None:
    """Say on standard error what is wrong; what it quotes of the data is harmless."""
    say(fitted(f"fastsft {command}: {visible(str(error))}", sys.stderr), sys.stderr)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print, with escapes for what the stream's encoding lacks. A reader that went away is no fault."""
    to = stream or sys.stdout
    if isinstance(to, io.TextIOWrapper):
        to.reconfigure(errors="backslashreplace")
    try:
        print(text, file=to, flush=True)
    except BrokenPipeError:
        # The interpreter would write the rest once more at its end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
