"""`fastsft verify DIR`: whether a model, an adapter or a checkpoint is whole, and its parts agree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fastsft import _C
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.cli.places import model_place
from fastsft.cli.trust import add_trust
from fastsft.doctor.check import FAILED, ExaminedDirectory, Result, count_text, examined, result_text
from fastsft.doctor.verification import contents, files, library
from fastsft.doctor.verification.comparison import Difference, compare, open_weights, summed
from fastsft.reporting.console_text import page_width
from fastsft.runtime.terminal import has_colour, visible

# name -> (check, hint that is printed if the check's error has none)
CHECKS: dict[str, tuple[Callable[[ExaminedDirectory], str], str]] = {
    "files": (files.check_files, "copy or download the directory again"),
    "config": (contents.check_config, "name a Hugging Face model directory of a supported family"),
    "tensors": (contents.check_tensors, "copy or download the weights again"),
    "values": (contents.check_values, "copy or download the weights again"),
    "tied weights": (contents.check_tied, "copy or download the weights again"),
    "tokenizer": (contents.check_tokenizer, "copy or download the tokenizer's files again"),
    "template": (contents.check_template, "copy or download the tokenizer's files again"),
    "transformers": (library.check_library, "copy or download the directory again"),
    "state": (files.check_state, "take another checkpoint"),
}
# For an adapter, these checks replace the checks of the same names.
_OF_ADAPTERS: dict[str, tuple[Callable[[ExaminedDirectory], str], str]] = {
    "config": (contents.check_adapter_config, "copy adapter_config.json again"),
    "tensors": (contents.check_adapter_tensors, "copy the adapter again"),
    "values": (contents.check_adapter_values, "take an adapter of an earlier checkpoint"),
    "tokenizer": (contents.check_adapter_tokenizer, "copy the tokenizer's files again"),
}


def main(arguments: Sequence[str]) -> int:
    """Check or compare directories, and return the exit status.

    The status is 0 if no check failed or the compared weights are equal, 1 if not, 2 if an argument is not a
    directory.
    """
    args = parse(arguments)
    try:
        args.directory = model_place(args.directory, has_code=args.trust_remote_code)
        args.against = model_place(args.against) if args.against is not None else None
    except ValueError as error:
        print_error("verify", error)
        return 2
    if args.against is not None:
        return _compare(args.directory, args.against)
    return print_results(verify(args.directory, trust_remote_code=args.trust_remote_code))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="fastsft verify",
        word_flag="--against",
        description=__doc__,
        epilog="Every byte is read, in blocks. Nothing is written.",
    )
    parser.add_argument(
        "directory", metavar="DIR", help="a model, a LoRA adapter, output/checkpoint-N, or a hub name"
    )
    parser.add_argument("--against", metavar="DIR", help="compare the tensors with those of this one")
    add_trust(parser)
    return parser.parse_args(arguments)


def verify(directory: Path, *, trust_remote_code: bool = False) -> Iterator[Result]:
    """Yield each check's result. trust_remote_code: run the model class in the directory's own code."""
    subject, checks = ExaminedDirectory(directory, trusts_code=trust_remote_code), dict(CHECKS)
    if subject.is_adapter:
        del checks["tied weights"], checks["transformers"]
        checks |= _OF_ADAPTERS
    for name, (check, way_out) in checks.items():
        yield examined(name, lambda check=check: check(subject), way_out)  # type: ignore[misc]


def _compare(directory: Path, against: Path) -> int:
    try:
        comparison = summed(compare(open_weights(directory), open_weights(against)), _print_difference)
    except (ValueError, OSError, _C.FileError) as error:
        print_error("verify", error)
        return 1
    print_line(visible(f"{directory} and {against}: {comparison.summary()}"))
    return 0 if comparison.is_equal else 1


def _print_difference(difference: Difference) -> None:
    print_line(visible(f"{difference.name}: {difference.text}"))


def print_results(results: Iterable[Result]) -> int:
    """Print each result as soon as its check ends; return 1 if a check failed, else 0."""
    seen = []
    for result in results:
        seen.append(result)
        print_line(result_text(result, page_width(), has_colour(sys.stdout)))
    print_line(count_text(seen))
    return 1 if any(result.mark == FAILED for result in seen) else 0
