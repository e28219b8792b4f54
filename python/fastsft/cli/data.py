"""`fastsft data`: the numbers of a data set as training would see it, and its records in another format."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from fastsft import _C
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.cli.config_flags import use_config
from fastsft.cli.inspect import add_format_argument, add_label_arguments, setup_from
from fastsft.data.label_files import LabelProgress
from fastsft.data.label_report import format_lines, has_calls
from fastsft.inspection.inspection_text import summary_text
from fastsft.runtime.new_files import NewFile, fresh_file
from fastsft.runtime.output_files import check_output_file
from fastsft.runtime.terminal import has_colour, terminal_width, visible
from fastsft.sources.data_files import DataFile, bytes_to_read, data_files
from fastsft.sources.readers import MAX_RECORD_BYTES, open_input


def main(arguments: Sequence[str]) -> int:
    """Run `fastsft data report` or `convert`; return 0 if done, 1 if failed, 2 for wrong usage."""
    args = parse(arguments)
    return int(args.run(args))


def report(args: argparse.Namespace) -> int:
    """Print the report of a data set, and return the exit status.

    The status is 0 if training would have targets, 1 if not or if training would stop at a record, 2 for
    wrong usage.
    """
    try:
        data_files(args.file)
        setup = setup_from(args, args.file)
    except (ValueError, OSError) as error:
        print_error("data report", error)
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
        print_error("data report", error)
        return 1
    if args.json:
        print_line(json.dumps(inspection.summary, indent=2))
    else:
        print_line(summary_text(inspection, colour=has_colour(sys.stdout), width=terminal_width(sys.stdout)))
    return 0 if inspection.is_learnable else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(prog="fastsft data", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="report|convert")
    parser_of_report = commands.add_parser(
        "report", help="what is learned, dropped and why, and how long rows are"
    )
    parser_of_report.set_defaults(run=report, parser=parser_of_report)
    parser_of_report.add_argument(
        "file", metavar="FILE", help="as --data_path: files, patterns, weights, - for stdin"
    )
    add_label_arguments(parser_of_report, needs_model=False)
    parser_of_report.add_argument("--json", action="store_true", help="as in data_report.json")
    add_convert_command(commands)
    if arguments and (way := _ELSEWHERE.get(arguments[0].lower())) is not None:
        parser.error(f"expected report or convert, got {arguments[0]!r}; {way}")
    use_config(parser_of_report, arguments)
    args, unknown = parser.parse_known_args(arguments)
    if unknown and not unknown[0].startswith("-"):
        args.parser.error(
            f"{unknown[0]!r} is a place too many; files are one value with commas, as a.json,b.json"
        )
    args.parser.refuse(unknown)
    return args


# Words for which there is no command -> the way
_ELSEWHERE = {
    **dict.fromkeys(
        ("split", "holdout", "sample", "subset"),
        "fastsft train --eval_split 0.05 holds records out, and FILE:0.1 as --data_path takes a tenth",
    ),
    **dict.fromkeys(
        ("merge", "join", "concat", "cat", "mix", "combine"),
        "--data_path a.json,b.json trains both, and fastsft data convert a.json,b.json OUT writes them",
    ),
    **dict.fromkeys(
        ("show", "view", "head", "print", "inspect", "preview", "browse"),
        "fastsft inspect --model DIR --data FILE shows records",
    ),
    **dict.fromkeys(
        ("stats", "count", "info", "describe", "check", "validate", "lint", "analyze", "analyse", "summary"),
        "write fastsft data report FILE",
    ),
    **dict.fromkeys(("format", "clean", "transform", "export"), "write fastsft data convert IN OUT"),
    **dict.fromkeys(
        ("tokenize", "tokenise", "prepare", "preprocess", "pack", "shuffle", "cache"),
        "training does it by itself, from the file as it is",
    ),
    **dict.fromkeys(("download", "pull", "fetch"), "--data_path hf://datasets/OWNER/NAME fetches it"),
}
_NAMED = 5  # the most issues that are printed
_AS_ARRAY = {".json": True, ".jsonl": False}


def add_convert_command(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the parser of `fastsft data convert`."""
    parser = commands.add_parser("convert", help="write records of any format as ShareGPT or messages")
    parser.set_defaults(run=convert, parser=parser)
    parser.add_argument(
        "file", metavar="IN", help="as --data_path: files, patterns, directories, - for stdin"
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="a new file: .json an array, .jsonl lines")
    parser.add_argument(
        "--format", choices=["sharegpt", "messages"], default="sharegpt", help="default %(default)s"
    )
    add_format_argument(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace OUT where it exists")
    parser.add_argument(
        "--on_bad_sample",
        choices=["error", "skip"],
        default="error",
        help="records that cannot be converted: error writes nothing, skip leaves them out and names them",
    )
    parser.add_argument("--report_bad", type=Path, metavar="FILE", help="list them here, a line of JSON each")
    parser.add_argument("--max_record_bytes", type=int, default=MAX_RECORD_BYTES, metavar="N")


def convert(args: argparse.Namespace) -> int:
    """Convert IN to OUT; return 0 if OUT was written, 1 if IN cannot be converted, 2 for wrong usage."""
    try:
        files = data_files(args.file)
        _check_out(args, files)
    except (ValueError, OSError) as error:
        print_error("data convert", error)
        return 2
    try:
        summary = _convert(files, args)
    except (ValueError, RuntimeError, OSError) as error:
        print_error("data convert", error)
        return 1
    for line in format_lines(files, summary):
        print_line(line)
    return _finish(summary, args)


def _check_out(args: argparse.Namespace, files: list[DataFile]) -> None:
    if args.out.suffix not in _AS_ARRAY:
        raise ValueError(f"{args.out}: expected a name that ends in .json (an array) or .jsonl (lines)")
    check_output_file(args.out, "OUT")
    if os.path.lexists(args.out) and not args.overwrite:
        raise ValueError(f"{args.out} exists; choose another name, or give --overwrite to replace it")
    if args.report_bad is not None:
        check_output_file(args.report_bad, "--report_bad")
        if os.path.lexists(args.report_bad) and not args.overwrite:
            raise ValueError(f"--report_bad: {args.report_bad} exists; give --overwrite to replace it")
    named = [*(file.path for file in files if not file.is_stream), args.out]
    named += [] if args.report_bad is None else [args.report_bad]
    places = [os.path.realpath(path) for path in named]
    twice = next((path for path, place in zip(named, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice among IN, OUT and --report_bad; choose another name")
    if args.max_record_bytes < 1:
        raise ValueError(f"--max_record_bytes: expected at least 1, got {args.max_record_bytes}")


class _FaultyError(Exception):
    """Raised inside the output's context, so that OUT is not written."""

    def __init__(self, summary: _C.ConvertSummary) -> None:
        self.summary = summary


def _convert(files: list[DataFile], args: argparse.Namespace) -> _C.ConvertSummary:
    """Convert to OUT, which appears only if all records were converted or bad records may be skipped."""
    with contextlib.ExitStack() as stack:
        write_bad: Callable[[bytes], None] = _forget
        if args.report_bad is not None:
            bad_lines = stack.enter_context(_fresh(args.report_bad))
            write_bad = _writer(bad_lines)
        try:
            with _fresh(args.out) as out:
                inputs = [open_input(file, None, args.max_record_bytes, args.data_format) for file in files]
                progress = LabelProgress(bytes_to_read(files), shown=True)
                try:
                    summary = _C.convert_inputs(
                        inputs, args.format, _AS_ARRAY[args.out.suffix], _writer(out), write_bad, progress
                    )
                finally:
                    progress.close()
                _check_calls(files, summary)
                if summary.num_written == 0 or (summary.num_faults and args.on_bad_sample == "error"):
                    raise _FaultyError(summary)
        except _FaultyError as error:
            return error.summary
    return summary


def _check_calls(files: list[DataFile], summary: _C.ConvertSummary) -> None:
    """Raise ValueError if the data has tool calls, which neither output format can express."""
    for file, use in zip(files, summary.formats, strict=True):
        if has_calls(use):
            raise ValueError(
                f"{file.path}: tool calls would be lost, nothing is written; train the file as it is "
                "(--data_path), or leave out the records with tool_calls"
            )


def _forget(_: bytes) -> None:
    """Drop a line of the report, because --report_bad is not given."""


def _fresh(path: Path) -> AbstractContextManager[NewFile]:
    return fresh_file(path.parent, path.name, durable=True)


def _writer(file: NewFile) -> Callable[[bytes], None]:
    def write(text: bytes) -> None:
        file.write(text)

    return write


def _finish(summary: _C.ConvertSummary, args: argparse.Namespace) -> int:
    for fault in summary.faults[:_NAMED]:
        print_line(visible(f"  {fault}"), sys.stderr)
    more = summary.num_faults - _NAMED
    if more > 0 and args.report_bad is None:
        print_line(f"  and {more:,} more; --report_bad FILE lists all of them", sys.stderr)
    if summary.num_written == 0:
        print_error("data convert", f"{args.file}: no record can be converted; nothing is written")
        return 1
    if summary.num_faults and args.on_bad_sample == "error":
        may_skip = any(not fault.always_stops for fault in summary.faults)
        way = "; --on_bad_sample skip leaves them out" if may_skip else ""
        print_error(
            "data convert",
            f"{summary.num_faults:,} of {summary.num_records:,} records cannot be converted, nothing is "
            f"written{way}",
        )
        return 1
    left = f", {summary.num_faults:,} left out" if summary.num_faults else ""
    print_line(visible(f"written: {args.out}, {summary.num_written:,} records as {args.format}{left}"))
    return 0
