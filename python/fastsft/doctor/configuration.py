"""The words of a command line: parsed, settled and refused by the code that the run itself uses."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.near_flags import clearer
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.arguments.parsing.parser_options import unknown_words
from fastsft.arguments.rules.evaluation import check_best_of_command
from fastsft.arguments.support import default_of
from fastsft.doctor.result import ProblemError
from fastsft.doctor.run import Run
from fastsft.model.causal_lm import CausalLM
from fastsft.trackers.registry import check_trackers
from fastsft.trainer.preflight import check_before_training, leave_out_evaluation
from fastsft.trainer.schedule import check_schedule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
CLASSES: tuple[type, ...] = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)


def _check_training(args: TrainingArguments) -> None:
    check_schedule(args)
    check_trackers(args.report_to, args)


# What the run looks at before it reads data, beyond what the classes refuse when they are made.
_EARLY: dict[type, Callable[[Any], None]] = {
    DataArguments: DataArguments.check_flags,
    TrainingArguments: _check_training,
}
_MOST_REFUSALS = 20


def args_file() -> Path | None:
    """The file of flags that `python -m fastsft.train` puts before its words."""
    found = importlib.util.find_spec("fastsft.train")
    return Path(found.origin).with_suffix(".args") if found and found.origin else None


def parse_words(words: Sequence[str]) -> dict[str, Any]:
    """Every flag's value. ValueError for words that training does not take; OSError for a --config."""
    parser = _Parser(CLASSES, add_help=False)
    file = args_file()
    values, unknown = parser.parse_values(words, [file] if file is not None else [])
    if unknown:
        raise ValueError(unknown_words(unknown, parser._option_string_actions))
    return vars(values)


class _Parser(DataclassParser):
    def error(self, message: str) -> NoReturn:
        """Instead of the usage of all flags, and an exit."""
        raise ValueError(clearer(message))


def check_configuration(run: Run) -> str:
    """All refusals, each with the flags before it taken back; the other checks go on without those flags."""
    refusals: list[str] = []
    settled = [_settled(kind, run.values, refusals) for kind in CLASSES]
    run.model_args, run.data_args, run.args, run.lora_args = settled
    if run.args is not None and not refusals:
        _check_evaluation(run, refusals)
    if refusals:
        rest = "" if run.args is None else "; the checks below are of the run without these flags"
        raise ProblemError("\n".join(refusals) + rest, "change or leave out what is refused")
    given = _num_given(run.values)
    return f"{given} flag{'' if given == 1 else 's'} set, none refused"


def _settled(kind: type[T], values: dict[str, Any], refusals: list[str]) -> T | None:
    """An instance; None when no flag can be found to blame."""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    own = {name: values[name] for name in fields}
    for _ in range(_MOST_REFUSALS):
        try:
            made = kind(**own)
            _EARLY.get(kind, lambda made: None)(made)
            return made
        except ValueError as error:
            refusals.append(str(error))
            named = [name for name in re.findall(r"--(\w+)", str(error)) if name in fields]
            guilty = next((name for name in named if own[name] != default_of(fields[name])), None)
            if guilty is None:
                return None
            own[guilty] = default_of(fields[guilty])
    return None


def _check_evaluation(run: Run, refusals: list[str]) -> None:
    path = run.settled_data_args.eval_data_path
    if path is None:
        leave_out_evaluation(run.settled_args)
    try:
        check_best_of_command(run.settled_args, path is not None)
        check_before_training(CausalLM, run.settled_args, path)
    except ValueError as error:
        refusals.append(str(error))


def _num_given(values: dict[str, Any]) -> int:
    """Flags whose value is another than without words."""
    unset = vars(_Parser(CLASSES, add_help=False).parse_values([])[0])
    return sum(value != unset[name] for name, value in values.items())
