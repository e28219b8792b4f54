"""`fastsft inspect`: the conversations of a file with what is learned marked, and why the rest is not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastsft import _C
from fastsft.arguments.parsing.options import DATA_NAMES, MODEL_NAMES, parse_bool
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.cli.config_flags import add_config, use_config
from fastsft.cli.inspect_against import (
    add_against_arguments,
    check_against,
    compared,
    show,
    use_against_config,
)
from fastsft.cli.places import with_flags
from fastsft.data.chat.labelling import LEARNED, LabelSettings, parse_role_map
from fastsft.inspection.against.comparison_page import comparison_page
from fastsft.inspection.inspect import (
    DEFAULT_MAX_LENGTH,
    InspectionSetup,
    no_such_record,
    prepare,
    prepare_without_model,
)
from fastsft.inspection.inspection_text import inspection_text
from fastsft.runtime.output_files import check_output_file, write_for_flag
from fastsft.runtime.terminal import has_colour, terminal_width, visible
from fastsft.sources.data_files import data_files
from fastsft.sources.readers import MAX_RECORD_BYTES


def main(arguments: Sequence[str]) -> int:
    """Print the inspected records, and return the exit status.

    The status is 0 if training would have targets, 1 if not or if training would stop at a record, 2 for
    wrong usage. With --against it is 0 if both make the same labels, 1 if not, 2 if one of them cannot run.
    """
    args = parse(arguments)
    try:
        if args.n < 0:
            raise ValueError(f"-n: expected 0 or more, got {args.n}")
        seed = 0 if args.random and args.seed is None else args.seed
        whole = args.against is not None
        choice = _C.SurveyChoice(count=args.n, seed=seed, id=args.record, only=args.only, whole=whole)
        if args.html:
            check_output_file(args.html, "--html")
        data_files(args.data)
        setup = setup_from(args, args.data)
        if whole:
            return _compare(args, setup, choice)
    except (ValueError, OSError) as error:
        print_error("inspect", error)
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
        print_error("inspect", error)
        return 1
    if args.record is not None and not inspection.num_matching:
        print_error("inspect", no_such_record(args.data, args.record))
        return 2
    colour, width = has_colour(sys.stdout, args.color), terminal_width(sys.stdout)
    print_line(inspection_text(inspection, colour=colour, tokens=args.tokens, width=width))
    if args.html and not write_page(args.html, inspection.html()):
        return 2
    return 0 if inspection.is_learnable else 1


def _compare(args: argparse.Namespace, setup: InspectionSetup, choice: _C.SurveyChoice) -> int:
    """Print the comparison with --against; return 0 if all is the same, 1 if not, 2 if no page is written."""
    comparison = compared(args, setup, label_settings(args), choice)
    show(comparison, args)
    if args.html and not write_page(args.html, comparison_page(comparison)):
        return 2
    return 0 if comparison.is_same else 1


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
    add_against_arguments(parser)
    words = with_flags(arguments, MODEL_NAMES, DATA_NAMES)
    use_config(parser, words)
    theirs = use_against_config(parser, words)
    args = parser.parse_args(words)
    args.against_config = theirs
    check_against(parser, args)
    if args.first and args.seed is not None:
        parser.error("--first and --seed contradict each other")
    if args.seed is not None and args.seed < 0:
        parser.error(f"--seed: expected 0 or more, got {args.seed}")
    return args


def write_page(path: Path, page: str) -> bool:
    """Write the HTML page and return True; if that fails, print the error and return False."""
    try:
        write_for_flag(path, page, "--html")
    except (OSError, ValueError) as error:
        print_error("inspect", str(error) if isinstance(error, ValueError) else f"--html: {error}")
        return False
    print_line(visible(f"written: {path}"))
    return True


def add_label_arguments(parser: argparse.ArgumentParser, *, needs_model: bool = True) -> None:
    """Add --model and the flags that affect labels, under their names in training."""
    without, policy, limit = "", "", ""
    if not needs_model:
        without = "; without it lengths are bytes and labels those of spans"
        policy, limit = ", without a model spans", ", without a model none"
    parser.add_argument(
        *MODEL_NAMES,
        dest="model",
        required=needs_model,
        metavar="DIR",
        help=f"model directory; only its tokenizer is read{without}",
    )
    parser.add_argument("--mask_policy", choices=["auto", "fastchat", "spans"], help=f"default auto{policy}")
    parser.add_argument("--template", help="chat template by name, or model: its own")
    parser.add_argument("--chat_template_name", help="which of the model's named chat templates")
    parser.add_argument(
        "--model_max_length",
        type=int,
        metavar="N",
        help=f"tokens of a row, as in training; default {DEFAULT_MAX_LENGTH}{limit}",
    )
    parser.add_argument("--train_turns", choices=["all", "last", "each"], default="all")
    parser.add_argument("--learn", choices=["all", "last", "after_last_user", "marked"], default="all")
    parser.add_argument(
        "--learn_tool_calls", type=parse_bool, nargs="?", const=True, default=True, metavar="True|False",
        help="learn replies that call tools; default True",
    )  # fmt: skip
    parser.add_argument("--learn_thoughts", choices=["all", "filled", "none"], default="all")
    parser.add_argument("--default_system", metavar="TEXT", help="system text of records without one")
    parser.add_argument("--role_map", metavar="NAME=ROLE,...", help="more names of roles in the data")
    parser.add_argument(
        "--role_aliases", type=parse_bool, nargs="?", const=True, default=False, metavar="True|False",
        help="accept user, assistant, ... too",
    )  # fmt: skip
    parser.add_argument("--on_bad_sample", choices=["error", "skip", "repair"])
    parser.add_argument("--overlong", choices=["truncate", "split"], default="truncate")
    parser.add_argument("--boundary_tokens", choices=["merge", "split"], default="merge")
    add_format_argument(parser)
    add_config(parser)
    parser.add_argument(
        "--max_record_bytes",
        type=int,
        default=MAX_RECORD_BYTES,
        metavar="N",
        help="bytes that one record may have; default %(default)s",
    )


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag --data_format."""
    parser.add_argument(
        "--data_format",
        choices=["auto", *_C.data_formats()],
        default="auto",
        help="what records are; default: as they say",
    )


def setup_from(args: argparse.Namespace, data: str) -> InspectionSetup:
    """Return the setup that labels `data`. ValueError for contradictory options or an unusable model."""
    settings = label_settings(args)
    if args.model is not None:
        return prepare(args.model, settings, args.model_max_length, data)
    for flag in ("model_max_length", "chat_template_name"):
        if getattr(args, flag) is not None:
            raise ValueError(f"--{flag}: is of a model's tokenizer; add --model DIR")
    if args.mask_policy == "fastchat":
        raise ValueError(
            "--mask_policy fastchat: FastChat counts a tokenizer's ids; add --model DIR, or leave it out"
        )
    return prepare_without_model(settings)


def label_settings(args: argparse.Namespace) -> LabelSettings:
    """Return the flags that affect labels. ValueError for a bad --role_map."""
    names = (
        "template",
        "chat_template_name",
        "train_turns",
        *LEARNED,
        "default_system",
        "role_aliases",
        "on_bad_sample",
        "overlong",
        "boundary_tokens",
    )
    return LabelSettings(
        mask_policy=args.mask_policy or "auto",
        role_map=parse_role_map(args.role_map),
        **{name: getattr(args, name) for name in names},
    )
