"""`--help`: common flags by subject; `--help WORD`: of a subject, of one flag, or all of them."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from fastsft.arguments.parsing.near_flags import hints
from fastsft.arguments.support import Meaning
from fastsft.arguments.table import argument_rows, as_text, class_of_fields

ALL = "all"
_FLAG_WIDTH = 34
_WIDEST = 110
_OWN = "program"  # fields that are none of fastsft's
_TITLES = {
    _OWN: "this program's own",
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
# The flags of `--help` without a word; they name the subject of those, too, whose class has another.
COMMON = {
    "model": "model_name_or_path padding_side cache_dir",
    "data": "data_path eval_data_path mask_policy template train_turns role_map on_bad_sample max_dropped "
    "check_data",
    "training": "output_dir num_train_epochs max_steps per_device_train_batch_size "
    "gradient_accumulation_steps model_max_length learning_rate lr_scheduler_type warmup_ratio weight_decay "
    "max_grad_norm neftune_noise_alpha bf16 seed config",
    "lora": "lora lora_r lora_alpha lora_target_modules lora_weight_path save_merged",
    "evaluation": "eval_strategy eval_steps per_device_eval_batch_size load_best_model_at_end",
    "saving": "save_strategy save_steps save_total_limit save_dtype max_shard_size resume_from_checkpoint "
    "no_resume",
    "memory": "fsdp deepspeed recompute micro_batch_tokens optim_dtype use_cpu",
    "reports": "logging_steps report_to run_name disable_tqdm plot_loss",
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
    """`--help [WORD]`: prints what `help_text` says and leaves with 0; with 2 where WORD means nothing."""

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
        """argparse calls it."""
        try:
            print(help_text(parser, None if word is None else str(word)), end="")
        except ValueError as error:
            parser.exit(2, f"{parser.prog}: error: {error}\n")
        parser.exit()


def subject_of(name: str) -> str:
    """The subject, a key of `COMMON`, that the field `name` of training belongs to; `program` for others."""
    for subject, names in COMMON.items():
        if name in names.split():
            return subject
    return _OF_CLASS.get(class_of_fields().get(name, ""), _OWN)


def help_text(parser: argparse.ArgumentParser, word: str | None = None) -> str:
    """The help of a parser of training's classes; argparse's own text for one without any of their fields.

    word: none (the common flags), `all`, a subject, the name of a flag, or a part of names. ValueError where
    nothing has it.
    """
    actions = _fields(parser)
    if all(subject_of(name) == _OWN for name in actions):
        return parser.format_help()
    if word is None:
        common = {name for names in COMMON.values() for name in names.split()}
        shown = [name for name in actions if name in common or subject_of(name) == _OWN]
        return f"{_head(parser)}\n{_groups(actions, shown)}\n{_foot(parser)}"
    if word == ALL:
        return f"{_head(parser)}\n{_groups(actions, actions)}"
    if word in _TITLES:
        return _groups(actions, [name for name in _with_effect(actions) if subject_of(name) == word])
    return _searched(actions, word)


def _fields(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The action of each field; of one with `--no_a_b` too, the first."""
    found: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if not isinstance(action, HelpAction) and action.option_strings:
            found.setdefault(action.dest, action)
    return found


def _searched(actions: dict[str, argparse.Action], word: str) -> str:
    name = word.lstrip("-").replace("-", "_")
    if row := [row for row in argument_rows() if row.name == name and name in actions]:
        return as_text(row)
    shown = [each for each in _with_effect(actions) if name and name in each]
    if not shown:
        hint = hints([f"--{name}"], [f"--{each}" for each in actions])[0]
        raise ValueError(
            f"--help {word}: expected {ALL}, {', '.join(COMMON)}, a flag or a part of one; {hint}"
        )
    return _groups(actions, shown)


def _with_effect(actions: dict[str, argparse.Action]) -> list[str]:
    return [name for name, action in actions.items() if _meaning(action).treatment == "IMPLEMENT"]


def _meaning(action: argparse.Action) -> Meaning:
    return action.help if isinstance(action.help, Meaning) else Meaning(action.help or "")


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
    remarks = {"NO-OP": f" [no effect: {meaning.remark}]", "REJECT": f" [refused: {meaning.remark}]"}
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
