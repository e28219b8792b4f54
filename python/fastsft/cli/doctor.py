"""`fastsft doctor`: configuration, data, disk, memory and communication of a run, before it begins."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from fastsft.arguments.parsing.options import DATA_NAMES, MODEL_NAMES
from fastsft.cli.command_parser import CommandParser, print_error
from fastsft.cli.places import with_flags
from fastsft.cli.verify import print_results
from fastsft.doctor.check import ExaminedRun, Result
from fastsft.doctor.configuration import args_file, parse_argv
from fastsft.doctor.examination import OF_INSTALLATION, OF_RUN, examine_installation, examine_run
from fastsft.program.self_launch import ranks_to_start
from fastsft.runtime.launch import launch


def main(arguments: Sequence[str]) -> int:
    """Run the checks; return 0 if none failed, 1 if one failed, 2 for flags that training rejects."""
    own, argv = parse(arguments)
    try:
        if not argv:
            return print_results(examine_installation(own.skip))
        values, given = parse_argv(argv)
        ranks = launch().world_size
        ranks = ranks if ranks > 1 else ranks_to_start(argv, args_file=args_file())
    except (ValueError, OSError) as error:
        if launch().rank == 0:
            print_error("doctor", error)
        return 2
    results = examine_run(ExaminedRun(values, ranks, own.records, given), own.skip)
    if launch().rank != 0:
        _take_part(results)
        return 0
    return print_results(results)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the doctor's own options; return them, and the remaining arguments (training flags)."""
    parser = CommandParser(
        prog="fastsft doctor",
        description=__doc__,
        usage="fastsft doctor [DIR [FILE]] [--records N] [--skip CHECK,...] [flags of fastsft train]",
        epilog="Without flags of training the installation is checked.",
    )
    parser.add_argument(
        "--records", type=int, default=200, help="of each data file that are labelled; default %(default)s"
    )
    names = [name for name in [*OF_RUN, *OF_INSTALLATION] if name != "configuration"]
    parser.add_argument("--skip", default="", help=f"checks to leave out: {', '.join(names)}")
    own, argv = parser.parse_known_args(with_flags(arguments, MODEL_NAMES[0], DATA_NAMES[0]))
    own.skip = [name.strip().replace("_", " ") for name in own.skip.split(",") if name.strip()]
    unknown = [name for name in own.skip if name not in names]
    if unknown:
        parser.error(f"--skip: expected some of {', '.join(names)}, got {', '.join(unknown)}")
    if own.records < 1:
        parser.error(f"--records: expected at least 1, got {own.records}")
    return own, argv


def _take_part(results: Iterable[Result]) -> None:
    """Take part in the rendezvous, which ends before the first result. Only rank 0 makes further checks."""
    next(iter(results), None)
