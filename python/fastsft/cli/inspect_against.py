"""`fastsft inspect --against`: the labels of another framework next to ours."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastsft import _C
from fastsft.arguments.parsing.parser import DataclassParser, named_files
from fastsft.cli.command_parser import CommandParser, print_line
from fastsft.cli.config_flags import KINDS, use_values
from fastsft.data.chat.labelling import LabelSettings
from fastsft.inspection.against.comparison import Against, Comparison, compare, compare_flags
from fastsft.inspection.against.comparison_text import comparison_text
from fastsft.inspection.against.configuration import Configuration, read_configuration
from fastsft.inspection.against.frameworks import FRAMEWORKS, OURS
from fastsft.inspection.inspect import InspectionSetup, no_such_record, prepare
from fastsft.runtime.hub_models import expanded
from fastsft.runtime.terminal import has_colour, terminal_width
from fastsft.sources.data_files import data_files


def add_against_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --against and the flags that belong to it."""
    parser.add_argument(
        "--against",
        choices=[*FRAMEWORKS, OURS],
        help="show the labels of this framework, made by its own code, next to ours; fastsft: ours with "
        "other flags",
    )
    parser.add_argument(
        "--against_config", metavar="FILE",
        help="the framework's own file (YAML, JSON, script, or dataset_info.json): it is read there with its "
        "settings, and here as fastsft import carries it over; flags win",
    )  # fmt: skip
    parser.add_argument(
        "--against_python", metavar="PATH", help="the Python that has the framework; default: this one"
    )
    parser.add_argument(
        "--against_setting", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the framework by its own name, such as template=qwen; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--against_seconds", type=float, default=600.0, metavar="N",
        help="how long the framework may take; default %(default)g",
    )  # fmt: skip


def use_against_config(parser: CommandParser, words: Sequence[str]) -> Configuration | None:
    """Return the file that `--against_config` names, whose imported values become defaults of the flags.

    With `--config`, our side is that file. If the file cannot be used, print the error and exit with
    status 2.
    """
    names = ("--against_config", "--against", "--config")
    try:
        configs, against, ours = (named_files(list(words), name, allow_abbrev=False)[0] for name in names)
        if not configs:
            return None
        trainer = str(against[-1]) if against else None
        if trainer in (OURS, "hf"):
            raise ValueError(f"--against {trainer} has no configuration file; leave --against out")
        found = read_configuration(expanded(str(configs[-1])), trainer)
        if not ours:
            training = DataclassParser(KINDS)
            path = str(configs[-1])
            use_values(parser, training, training.checked_values(dict(found.imported), path))
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: --against_config: {error}\n")
    parser.set_defaults(against=found.name)
    return found


def check_against(parser: CommandParser, args: argparse.Namespace) -> None:
    """Exit with an error if flags contradict --against."""
    if args.against is None:
        for flag in ("against_python", "against_setting"):
            if getattr(args, flag):
                parser.error(f"--{flag} belongs to --against, which is not given")
        return
    if args.against_seconds <= 0:
        parser.error(f"--against_seconds: expected more than 0, got {args.against_seconds:g}")
    for setting in args.against_setting:
        if not setting.partition("=")[0].strip() or "=" not in setting:
            parser.error(f"--against_setting: expected NAME=VALUE, got {setting!r}")
    if args.against != OURS:
        return
    if args.only or args.data == "-":
        flag = "--only chooses by one outcome" if args.only else "--data - can be read once"
        parser.error(f"--against {OURS}: {flag}, and the records are labelled twice")
    if not args.against_setting:
        parser.error(
            f"--against {OURS}: name the other flags, such as --against_setting mask_policy=fastchat"
        )


def settings_of(given: list[str]) -> dict[str, Any]:
    """Return settings by name. A value that is JSON, or True or False, is read as such; others are texts."""
    return {
        name.strip(): _value(value.strip())
        for name, _, value in (setting.partition("=") for setting in given)
    }


def _value(text: str) -> Any:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def compared(
    args: argparse.Namespace, setup: InspectionSetup, settings: LabelSettings, choice: _C.SurveyChoice
) -> Comparison:
    """Return the comparison that the flags ask for. ValueError if one of the two sides cannot run."""

    def read(of: InspectionSetup) -> tuple[str, _C.Survey]:
        return of.read(
            args.data, choice, show_progress=True, max_record_bytes=args.max_record_bytes,
            data_format=args.data_format,
        )  # fmt: skip

    others = settings_of(args.against_setting)
    name, survey = read(setup)
    if args.record is not None and not survey.num_matching:
        raise ValueError(no_such_record(args.data, args.record))
    if args.against != OURS:
        python = args.against_python or sys.executable
        against = Against(args.against, others, python, args.against_seconds)
        return compare(setup, name, survey, _as_configured(against, args.against_config, args.data))
    try:
        changed = replace(settings, **others)
    except TypeError:
        known = sorted(LabelSettings.__dataclass_fields__)
        raise ValueError(f"--against_setting: expected one of {', '.join(known)}") from None
    second = prepare(args.model, changed, args.model_max_length, args.data)
    return compare_flags((setup, second), name, (survey, read(second)[1]), others)


def _as_configured(against: Against, config: Configuration | None, data: str) -> Against:
    """Return a framework with its file's settings, which reads the data itself. Given settings win."""
    if config is None:
        return against
    files = [file.path for file in data_files(data)]

    def description_of(name: str) -> Mapping[str, Any]:
        # A survey names files only if there are several.
        return config.description_of(files[0] if len(files) == 1 else name)

    settings = {**config.settings, **against.settings}
    reader = description_of if config.reads_data else None
    return replace(against, settings=settings, description_of=reader)


def show(comparison: Comparison, args: argparse.Namespace) -> None:
    """Print a comparison as text, with colours on a terminal."""
    colour, width = has_colour(sys.stdout, args.color), terminal_width(sys.stdout)
    print_line(comparison_text(comparison, colour=colour, tokens=args.tokens, width=width))
