"""Flags that were given and have no effect with the others: a line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import given_fields
from fastsft.arguments.optimizer import optimizer_of
from fastsft.runtime.messages import warn_once


class Need(NamedTuple):
    """Fields, whether they have an effect, and the words for those that have none."""

    names: tuple[str, ...]
    is_met: Callable[[ArgumentFields], bool]
    way_out: str


def _by_moments(args: ArgumentFields) -> bool:
    return optimizer_of(args) in ("adamw", "adamw_8bit")


def _logs_by_steps(args: ArgumentFields) -> bool:
    """Steps of logging are those of evaluation, too, unless these are named."""
    return "steps" in (args.logging_strategy, args.eval_strategy)


def _goes_on(args: ArgumentFields) -> bool:
    return args.on_nonfinite != "stop"


def _is_grouped(args: ArgumentFields) -> bool:
    return args.train_sampling_strategy == "group_by_length"


_READ_WITH = "it is read with"
_NEEDS = (
    Need(("eval_steps",), lambda args: args.eval_strategy == "steps", f"{_READ_WITH} --eval_strategy steps"),
    Need(
        ("eval_delay",),
        lambda args: args.eval_strategy != "no",
        f"{_READ_WITH} evaluations",
    ),
    Need(("save_steps",), lambda args: args.save_strategy == "steps", f"{_READ_WITH} --save_strategy steps"),
    Need(("save_total_limit",), lambda args: args.save_strategy != "no", "--save_strategy no saves none"),
    Need(("logging_steps",), _logs_by_steps, f"{_READ_WITH} --logging_strategy steps"),
    Need(("num_train_epochs",), lambda args: args.max_steps <= 0, "--max_steps says how long the run is"),
    Need(
        ("adam_beta1", "adam_beta2", "adam_epsilon"),
        _by_moments,
        "--optim names another optimizer than AdamW",
    ),
    Need(("initial_loss_scale", "loss_scale_window"), lambda args: args.fp16, f"{_READ_WITH} --fp16 True"),
    Need(
        ("loss_spike_patience",), lambda args: args.loss_spike_factor > 0, f"{_READ_WITH} --loss_spike_factor"
    ),
    Need(("max_nonfinite_skips",), _goes_on, f"{_READ_WITH} --on_nonfinite skip or rollback"),
    Need(("length_column_name",), _is_grouped, f"{_READ_WITH} --train_sampling_strategy group_by_length"),
)


def name_idle_flags(args: ArgumentFields) -> None:
    """A line for each given field whose need is not met; None and switches that are off ask for nothing."""
    given = given_fields(args)
    for need in _NEEDS:
        for name in need.names:
            value = getattr(args, name)
            if name in given and value is not None and not need.is_met(args):
                warn_once(f"--{name} {value} has no effect: {need.way_out}")
