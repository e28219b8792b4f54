"""`fastsft data`: the numbers of a data set as training would see it, and its records in another format."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from fastsft import _C
from fastsft.cli.command_parser import CommandParser
from fastsft.cli.data_convert import add_convert_command
from fastsft.cli.inspect import complain, say
from fastsft.cli.label_arguments import add_label_arguments, setup_from
from fastsft.inspection.inspection_text import summary_text
from fastsft.runtime.terminal import has_colour, terminal_width
from fastsft.sources.data_files import data_files


def main(arguments: Sequence[str]) -> int:
    """The status of the command: 0 done, 1 failed, 2 wrong usage."""
    args = parse(arguments)
    return int(args.run(args))


def report(args: argparse.Namespace) -> int:
    """0: something is learned; 1: nothing is, or training would stop at a record; 2: wrong usage."""
    try:
        data_files(args.file)
        setup = setup_from(args, args.file)
    except (ValueError, OSError) as error:
        complain("data report", error)
        return 2
    try:
        inspection = setup.survey(
            args.file,
            _C.SurveyChoice(count=0),
            show_progress=True,
            max_record_bytes=args.max_record_bytes,
            data_format=args.data_format,
        )
    except (ValueError, OSError) as error:
        complain("data report", error)
        return 1
    if args.json:
        say(json.dumps(inspection.summary, indent=2))
    else:
        say(summary_text(inspection, colour=has_colour(sys.stdout), width=terminal_width(sys.stdout)))
    return 0 if inspection.is_learnable else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(prog="fastsft data", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="report|convert")
    parser_of_report = commands.add_parser(
        "report", help="what is learned, dropped and why, and how long rows are"
    )
    parser_of_report.set_defaults(run=report, parser=parser_of_report)
    parser_of_report.add_argument("file", help="as --data_path: files, patterns, weights, - for stdin")
    add_label_arguments(parser_of_report, needs_model=False)
    parser_of_report.add_argument("--json", action="store_true", help="as in data_report.json")
    add_convert_command(commands)
    args, unknown = parser.parse_known_args(arguments)
    args.parser.refuse(unknown)
    return args
