"""Prints arguments: `--help` by subject, and the tables of `fastsft args` and docs/arguments.md."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import textwrap
import types
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastsft.arguments.data import DataArguments, ModelArguments
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.parsing.hints import hints
from fastsft.arguments.support import ArgSupport, Support, default_of, support_of
from fastsft.arguments.training import TrainingArguments

ALL = "all"
_FLAG_WIDTH = 34
_WIDEST = 110
_PROGRAM = "program"  # subject of fields that a script's own class adds
_TITLES = {
    _PROGRAM: "this program's own",
    "model": "model",
    "data": "data and labels",
    "training": "training",
    "lora": "lora: low-rank adapters",
    "evaluation": "evaluation",
    "saving": "saving and resuming",
    "memory": "memory, device and ranks",
    "reports": "reports and logs",
    "faults": "faults: bad numbers, stuck ranks",
    "hub": "hub: uploads",
}
# Flags that `--help` prints if no word follows, by subject. A flag's subject here may differ from the subject
# of its class in `_OF_CLASS`.
COMMON = {
    "model": "model_name_or_path cache_dir",
    "data": "data_path eval_data_path mask_policy template learn train_turns on_bad_sample max_dropped "
    "check_data",
    "training": "output_dir num_train_epochs max_steps per_device_train_batch_size "
    "gradient_accumulation_steps model_max_length learning_rate lr_scheduler_type warmup_ratio weight_decay "
    "max_grad_norm neftune_noise_alpha bf16 seed config",
    "lora": "lora lora_r lora_alpha lora_target_modules lora_weight_path save_merged",
    "evaluation": "eval_split eval_strategy eval_steps per_device_eval_batch_size load_best_model_at_end "
    "early_stopping_patience sample_prompts",
    "saving": "save_strategy save_steps save_total_limit save_dtype max_shard_size resume_from_checkpoint "
    "no_resume",
    "memory": "fsdp deepspeed recompute micro_batch_tokens optim_dtype use_cpu",
    "reports": "logging_steps report_to run_name plot_loss",
    "faults": "on_nonfinite loss_spike_factor",
    "hub": "push_to_hub hub_model_id",
}
_OF_CLASS = {
    "ModelArguments": "model", "LoraArguments": "lora", "DataArguments": "data", "RunArguments": "training",
    "BatchArguments": "training", "OptimizerArguments": "training", "EvaluationArguments": "evaluation",
    "CheckpointArguments": "saving", "PrecisionArguments": "memory", "ShardingArguments": "memory",
    "ReportArguments": "reports", "FaultArguments": "faults", "HubArguments": "hub",
}  # fmt: skip


class HelpAction(argparse.Action):
    """Action of `--help [WORD]`, which prints `help_text` and exits with 0, or with 2 if WORD is unknown."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", metavar="WORD", **options)
        self.default = argparse.SUPPRESS

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _: argparse.Namespace,
        word: str | Sequence[Any] | None,
        __: str | None = None,
    ) -> None:
        try:
            print(help_text(parser, None if word is None else str(word)), end="")
        except ValueError as error:
            parser.exit(2, f"{parser.prog}: error: {error}\n")
        parser.exit()


def subject_of(name: str) -> str:
    """Return the subject of a training field, a key in `COMMON`; `program` for other fields."""
    for subject, names in COMMON.items():
        if name in names.split():
            return subject
    return _OF_CLASS.get(class_of_fields().get(name, ""), _PROGRAM)


def help_text(parser: argparse.ArgumentParser, word: str | None = None) -> str:
    """Return the help text; for a parser without training fields, argparse's own text.

    word: None for the common flags, `all`, a subject, a flag, or a part of flag names. ValueError if no flag
    matches.
    """
    actions = _fields(parser)
    if all(subject_of(name) == _PROGRAM for name in actions):
        return parser.format_help()
    if word is None:
        common = {name for names in COMMON.values() for name in names.split()}
        shown = [name for name in actions if name in common or subject_of(name) == _PROGRAM]
        return f"{_head(parser)}\n{_groups(actions, shown)}\n{_foot(parser)}"
    if word == ALL:
        return f"{_head(parser)}\n{_groups(actions, actions)}"
    if word in _TITLES:
        return _groups(actions, [name for name in _with_effect(actions) if subject_of(name) == word])
    return _searched(actions, word)


def _fields(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the parser's action for each field; a second action, for `--no_a_b`, is left out."""
    fields: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if not isinstance(action, HelpAction) and action.option_strings:
            fields.setdefault(action.dest, action)
    return fields


def _searched(actions: dict[str, argparse.Action], word: str) -> str:
    name = word.lstrip("-").replace("-", "_")
    if row := [row for row in argument_rows() if row.name == name and name in actions]:
        return as_text(row)
    shown = [field for field in _with_effect(actions) if name and name in field]
    if not shown:
        hint = hints([f"--{name}"], [f"--{field}" for field in actions])[0]
        raise ValueError(
            f"--help {word}: expected {ALL}, {', '.join(COMMON)}, a flag or a part of one; {hint}"
        )
    return _groups(actions, shown)


def _with_effect(actions: dict[str, argparse.Action]) -> list[str]:
    return [name for name, action in actions.items() if _meaning(action).treatment is Support.SUPPORTED]


def _meaning(action: argparse.Action) -> ArgSupport:
    return action.help if isinstance(action.help, ArgSupport) else ArgSupport(action.help or "")


def _head(parser: argparse.ArgumentParser) -> str:
    return f"usage: {parser.prog} --model_name_or_path DIR --data_path FILE --output_dir DIR [flags]\n"


def _foot(parser: argparse.ArgumentParser) -> str:
    text = (
        f"{parser.prog} --help all lists every flag; --help WORD those of a subject ({', '.join(COMMON)}), "
        "one flag, or all with this word in their names. --model and --data are short for "
        "--model_name_or_path and --data_path; --a-b is --a_b."
    )
    return textwrap.fill(text, _room(), break_long_words=False, break_on_hyphens=False) + "\n"


def _groups(actions: dict[str, argparse.Action], names: Iterable[str]) -> str:
    shown = list(names)
    parts = []
    for subject, title in _TITLES.items():
        own = [name for name in shown if subject_of(name) == subject]
        ranks = {name: rank for rank, name in enumerate(COMMON.get(subject, "").split())}
        own.sort(key=lambda name: ranks.get(name, len(ranks)))
        if own:
            parts.append("\n".join([title, *(_line(actions[name]) for name in own), ""]))
    return "\n".join(parts)


def _line(action: argparse.Action) -> str:
    meaning = _meaning(action)
    flag = f"  --{action.dest} {_value(action)}".rstrip()
    remarks = {
        Support.IGNORED: f" [no effect: {meaning.remark}]",
        Support.REJECTED: f" [refused: {meaning.remark}]",
    }
    default = "" if action.default in (None, "", [], False) else f" (default {action.default})"
    text = f"{str(meaning).replace('%%', '%')}{default}{remarks.get(meaning.treatment, '')}"
    room = _room()
    indent = " " * _FLAG_WIDTH
    first = f"{flag:<{_FLAG_WIDTH - 1}} "
    if len(first) <= _FLAG_WIDTH:
        return textwrap.fill(
            text, room, initial_indent=first, subsequent_indent=indent, break_long_words=False
        )
    body = textwrap.fill(text, room, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
    return f"{flag}\n{body}" if text else flag


def _room() -> int:
    return max(min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST) - 1, 2 * _FLAG_WIDTH)


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        listed = "|".join(map(str, action.choices))
        return listed if len(listed) <= _FLAG_WIDTH else "WORD"
    if action.nargs == "?":
        return "[True|False]"
    numbers: dict[object, str] = {int: "N", float: "X"}
    return numbers.get(action.type, "TEXT" if action.nargs != 0 else "")


@dataclasses.dataclass(frozen=True)
class ArgumentRow:
    """One row of the argument tables. treatment: supported, ignored or rejected. remark: may be ""."""

    subject: str
    name: str
    type: str
    default: object
    treatment: str
    meaning: str
    remark: str

    @property
    def flag(self) -> str:
        """The flag as typed in a shell; for a field without a flag, its name."""
        return self.name if self.name.startswith("_") else f"--{self.name}"


def argument_rows() -> list[ArgumentRow]:
    """Return a row for each argument: model, data and LoRA first, then TrainingArguments by subject."""
    return [row for kind in _subjects() for row in _rows_of(kind)]


@cache
def class_of_fields() -> dict[str, str]:
    """Return the name of the declaring class for each field name."""
    return {field.name: kind.__name__ for kind in _subjects() for field in dataclasses.fields(kind)}


def _subjects() -> list[type]:
    training = [base for base in reversed(TrainingArguments.__mro__[1:]) if _has_fields(base)]
    return [ModelArguments, DataArguments, LoraArguments, *training]


def _has_fields(kind: type) -> bool:
    """True if the class itself is a dataclass, and does not only derive from dataclasses."""
    return "__dataclass_fields__" in vars(kind)


def _rows_of(kind: type) -> Iterable[ArgumentRow]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        meaning = support_of(field)
        treatment, remark = meaning.treatment, meaning.remark
        if not field.init:
            treatment, remark = Support.IGNORED, "no flag: set by the launch"
        yield ArgumentRow(
            subject=str(kind.__doc__).rstrip("."),
            name=field.name,
            type=type_name(hints[field.name]),
            default=default_of(field),
            treatment=treatment,
            meaning=str(meaning),
            remark=remark,
        )


def type_name(hint: object) -> str:
    """Return a readable name of a type, such as `int or none`, or `a, b, c` for a Literal."""
    if get_origin(hint) in (Union, types.UnionType):
        members = [type_name(member) for member in get_args(hint) if member is not type(None)]
        return " or ".join([*members, "none"]) if type(None) in get_args(hint) else " or ".join(members)
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {type_name(get_args(hint)[0])}"
    return "object" if get_origin(hint) is dict else str(getattr(hint, "__name__", hint))


def as_json(rows: Iterable[ArgumentRow]) -> str:
    """Return the rows as a JSON list of objects."""
    return json.dumps([dataclasses.asdict(row) for row in rows], indent=2)


def as_markdown(rows: Iterable[ArgumentRow]) -> str:
    """Return the rows as Markdown, with a table for each subject."""
    lines: list[str] = []
    subject = None
    for row in rows:
        if row.subject != subject:
            subject = row.subject
            lines += [
                "", f"## {subject}", "", "| argument | type | default | | meaning |", "|---|---|---|---|---|",
            ]  # fmt: skip
        remark = f" ({row.remark})" if row.remark else ""
        cells = [f"`{row.flag}`", row.type, _shown(row.default), row.treatment, f"{row.meaning}{remark}"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip("\n") + "\n"


def as_text(rows: Iterable[ArgumentRow]) -> str:
    """Return the rows as text for a terminal, with two lines for each argument."""
    lines = []
    for row in rows:
        default = _shown(row.default)
        lines.append(f"{row.flag}  {row.type}; default {default}; {row.treatment}")
        lines.append(f"    {row.meaning}" + (f"; {row.remark}" if row.remark else ""))
    return "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    if default is None:
        return "none"
    return json.dumps(default) if default in ("", []) else str(default)
