"""`fastsft doctor`: configuration, data, disk, memory and communication of a run, before it begins."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.doctor.check import FAILED, ExaminedRun, Result, count_text, result_text
from fastsft.doctor.configuration import args_file, parse_words
from fastsft.doctor.examination import OF_INSTALLATION, OF_RUN, examine_installation, examine_run
from fastsft.program.self_launch import ranks_to_start
from fastsft.reporting.console_text import page_width
from fastsft.runtime.place import launch
from fastsft.runtime.terminal_text import has_colour


def main(arguments: Sequence[str]) -> int:
    """0: all ok, or only warnings; 1: something failed; 2: words that the trainer does not take."""
    own, words = parse(arguments)
    try:
        if not words:
            return _print(examine_installation(own.skip))
        values, given = parse_words(words)
        ranks = launch().world_size
        ranks = ranks if ranks > 1 else ranks_to_start(words, args_file=args_file())
    except (ValueError, OSError) as error:
        if launch().rank == 0:
            print_error("doctor", error)
        return 2
    results = examine_run(ExaminedRun(values, ranks, own.records, given), own.skip)
    if launch().rank != 0:
        _take_part(results)
        return 0
    return _print(results)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The doctor's own options, which are written out in full, and the words of training."""
    parser = CommandParser(
        prog="fastsft doctor",
        description=__doc__,
        usage="fastsft doctor [--records N] [--skip CHECK,...] [flags of python -m fastsft.train]",
        epilog="Without flags of training the installation is checked.",
    )
    parser.add_argument(
        "--records", type=int, default=200, help="of each data file that are labelled; default %(default)s"
    )
    names = [name for name in [*OF_RUN, *OF_INSTALLATION] if name != "configuration"]
    parser.add_argument("--skip", default="", help=f"checks to leave out: {', '.join(names)}")
    own, words = parser.parse_known_args(arguments)
    own.skip = [name.strip().replace("_", " ") for name in own.skip.split(",") if name.strip()]
    unknown = [name for name in own.skip if name not in names]
    if unknown:
        parser.error(f"--skip: expected some of {', '.join(names)}, got {', '.join(unknown)}")
    if own.records < 1:
        parser.error(f"--records: expected at least 1, got {own.records}")
    return own, words


def _take_part(results: Iterable[Result]) -> None:
    """Up to the first result: the ranks have met by then, and rank 0 looks at the rest."""
    next(iter(results), None)


def _print(results: Iterable[Result]) -> int:
    seen = []
    for result in results:
        seen.append(result)
        print_line(result_text(result, page_width(), has_colour(sys.stdout)))
    print_line(count_text(seen))
    return 1 if any(result.mark == FAILED for result in seen) else 0
