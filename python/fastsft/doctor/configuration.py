"""Checks the flags of a run with the code that a run uses to parse and resolve them."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.given import COMMAND_LINE, RefusedFlagsError, made_with
from fastsft.arguments.parsing.hints import clearer
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.arguments.resolve.training import check_best_of_command
from fastsft.arguments.support import default_of
from fastsft.doctor.check import ExaminedRun, ProblemError
from fastsft.model.causal_lm import CausalLM
from fastsft.trackers.tracker import check_trackers
from fastsft.trainer.preflight import check_before_training, disable_evaluation
from fastsft.trainer.samples import check_sample_prompts
from fastsft.trainer.schedule import check_schedule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
CLASSES: tuple[type, ...] = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)


def _check_training(args: TrainingArguments) -> None:
    check_schedule(args)
    check_trackers(args.report_to, args)


# Checks that a run makes before it reads data, for each argument class.
_EARLY: dict[type, Callable[[Any], None]] = {
    DataArguments: DataArguments.check_flags,
    TrainingArguments: _check_training,
}
_MOST_REFUSALS = 20


def args_file() -> Path | None:
    """Return the path of the file whose flags `python -m fastsft.train` reads before its arguments."""
    spec = importlib.util.find_spec("fastsft.train")
    return Path(spec.origin).with_suffix(".args") if spec and spec.origin else None


def parse_argv(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all flag values, and the source of each given flag.

    ValueError for unknown arguments; OSError if a --config file cannot be read.
    """
    parser = _Parser(CLASSES, add_help=False)
    file = args_file()
    values, unknown = parser.parse_values(argv, [file] if file is not None else [])
    if unknown:
        parser.refuse(unknown)
    return vars(values), parser.given


class _Parser(DataclassParser):
    def error(self, message: str) -> NoReturn:
        """Raise ValueError, because argparse would print all flags and exit."""
        raise ValueError(clearer(message))


def check_configuration(run: ExaminedRun) -> str:
    """Check that no flag is refused. ProblemError lists all refusals.

    Later checks examine the run without the refused flags.
    """
    refusals: list[str] = []
    resolved = [_resolved(kind, run, refusals) for kind in CLASSES]
    run.model_args, run.data_args, run.args, run.lora_args = resolved
    if run.args is not None and not refusals:
        _check_evaluation(run, refusals)
    if refusals:
        rest = "" if run.args is None else "; the checks below are of the run without these flags"
        raise ProblemError("\n".join(refusals) + rest, "change or leave out what is refused")
    return f"{_num_given(run.given)} set, none refused"


def _resolved(kind: type[T], run: ExaminedRun, refusals: list[str]) -> T | None:
    """Return an instance of `kind` without the refused flags, and add errors to `refusals`.

    None if an error names no given flag: the flag to leave out is then unknown.
    """
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    own = {name: run.values[name] for name in fields}
    given = {name: run.given[name] for name in fields if name in run.given}
    for _ in range(_MOST_REFUSALS):
        try:
            made = made_with(kind, own, given)
            _EARLY.get(kind, lambda made: None)(made)
            return made
        except ValueError as error:
            refusals.append(str(error))
            for guilty in (blamed := _blamed(error, given)):
                own[guilty] = default_of(fields[guilty])
                del given[guilty]
            if not blamed:
                return None
    return None


def _blamed(error: ValueError, given: Mapping[str, str]) -> list[str]:
    """Return the given flags that the error names: all flags that are refused together, else the first."""
    if isinstance(error, RefusedFlagsError):
        return [name for name in error.names if name in given]
    return [name for name in re.findall(r"--(\w+)", str(error)) if name in given][:1]


def _check_evaluation(run: ExaminedRun, refusals: list[str]) -> None:
    has_data = run.resolved_data_args.has_evaluation
    if not has_data:
        disable_evaluation(run.resolved_args)
    try:
        check_sample_prompts(run.resolved_args, run.resolved_data_args)
        check_best_of_command(run.resolved_args, has_data)
        check_before_training(CausalLM, run.resolved_args, run.resolved_data_args if has_data else None)
    except ValueError as error:
        refusals.append(str(error))


def _num_given(given: Mapping[str, str]) -> str:
    """Return how many flags are given as text, such as `7 flags` or `7 flags, 3 of them in run.yaml,`."""
    files = Counter(by for by in given.values() if by != COMMAND_LINE)
    of_files = "".join(f", {count} of them in {by}," for by, count in files.items())
    return f"{len(given)} flag{'' if len(given) == 1 else 's'}{of_files}"
