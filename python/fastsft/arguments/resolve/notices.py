"""Warns about given flags without effect, and about unusual values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fastsft.arguments.engine_flags import optimizer_of
from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import given_fields
from fastsft.arguments.values import parse_size
from fastsft.runtime.messages import warn_once


class Condition(NamedTuple):
    """Condition under which fields have an effect.

    names: the fields, separated by spaces. reason: text of the warning if the condition is not met.
    """

    names: str
    is_met: Callable[[ArgumentFields], bool]
    reason: str


_READ_WITH = "it is read with"
_CONDITIONS = (
    Condition(
        "eval_steps", lambda args: args.eval_strategy == "steps", f"{_READ_WITH} --eval_strategy steps"
    ),
    Condition("eval_delay", lambda args: args.eval_strategy != "no", f"{_READ_WITH} evaluations"),
    Condition(
        "save_steps", lambda args: args.save_strategy == "steps", f"{_READ_WITH} --save_strategy steps"
    ),
    Condition("save_total_limit", lambda args: args.save_strategy != "no", "--save_strategy no saves none"),
    Condition(
        "logging_steps",
        # logging_steps is also the default of eval_steps
        lambda args: "steps" in (args.logging_strategy, args.eval_strategy),
        f"{_READ_WITH} --logging_strategy steps",
    ),
    Condition("num_train_epochs", lambda args: args.max_steps <= 0, "--max_steps says how long the run is"),
    Condition(
        "adam_beta1 adam_beta2 adam_epsilon",
        lambda args: optimizer_of(args) in ("adamw", "adamw_8bit"),
        "--optim names another optimizer than AdamW",
    ),
    Condition(
        "offload_inputs", lambda args: args.device.type != "cpu", "on the CPU all memory is the host's"
    ),
    Condition("initial_loss_scale loss_scale_window", lambda args: args.fp16, f"{_READ_WITH} --fp16 True"),
    Condition(
        "loss_spike_patience", lambda args: args.loss_spike_factor > 0, f"{_READ_WITH} --loss_spike_factor"
    ),
    Condition(
        "early_stopping_threshold",
        lambda args: args.early_stopping_patience is not None,
        f"{_READ_WITH} --early_stopping_patience",
    ),
    Condition(
        "sample_max_new_tokens sample_temperature",
        lambda args: args.sample_prompts is not None,
        f"{_READ_WITH} --sample_prompts",
    ),
    Condition(
        "max_nonfinite_skips",
        lambda args: args.on_nonfinite != "stop",
        f"{_READ_WITH} --on_nonfinite skip or rollback",
    ),
    Condition(
        "length_column_name",
        lambda args: args.train_sampling_strategy == "group_by_length",
        f"{_READ_WITH} --train_sampling_strategy group_by_length",
    ),
)


def warn_idle_flags(args: ArgumentFields) -> None:
    """Warn of each given field whose value is not None and whose condition is not met."""
    given = given_fields(args)
    for condition in _CONDITIONS:
        for name in condition.names.split():
            value = getattr(args, name)
            if name in given and value is not None and not condition.is_met(args):
                shown = f"{value:g}" if isinstance(value, float) else value
                warn_once(f"--{name} {shown} has no effect: {condition.reason}")


_SMALLEST_FILE = 1_000_000  # in bytes; the embeddings of a small model alone are larger
_MOST_EPOCHS = 100
_HIGHEST_RATE = 0.05  # limit for optimizers whose step size does not depend on the gradient's size
_LOWEST_RATE = 1e-9
_MOST_DECAY, _MOST_SMOOTHING, _MOST_NOISE, _MOST_EPSILON = 1.0, 0.5, 100.0, 1e-2


def warn_odd_values(args: ArgumentFields) -> None:
    """Warn of each value with which a model is unlikely to train well."""
    for check in (_check_rate, _check_schedule, _check_optimizer, _check_length, _check_files):
        for warning in check(args):
            warn_once(warning)


def _check_rate(args: ArgumentFields) -> Iterator[str]:
    rate = args.learning_rate
    if rate == 0:
        yield "--learning_rate 0.0: no weight will change"
    elif rate < _LOWEST_RATE:
        yield f"--learning_rate {rate:g} is so low that hardly a weight changes; usual are 1e-6 to 1e-3"
    elif rate > _HIGHEST_RATE and optimizer_of(args) != "sgd":
        yield (
            f"--learning_rate {rate:g}: each step moves each weight by about as much, which ruins a model; "
            "usual are 1e-6 to 1e-3"
        )
    elif rate > 10:
        yield f"--learning_rate {rate:g} is far above what trains a model"
    if args.warmup_ratio == 1 and not args.warmup_steps and warms_up(args):
        yield f"--warmup_ratio 1.0: all of the run is warm-up, and {rate:g} is never reached"
    if args.max_steps > 0 and args.warmup_steps >= max(args.max_steps, 1) and warms_up(args):
        yield warmup_line(args.warmup_steps, args.max_steps, rate)


def warms_up(args: ArgumentFields) -> bool:
    """True if the learning rate schedule has a warm-up."""
    return args.lr_scheduler_type not in ("constant", "reduce_lr_on_plateau")


def _check_schedule(args: ArgumentFields) -> Iterator[str]:
    options = args.lr_scheduler_kwargs if isinstance(args.lr_scheduler_kwargs, dict) else {}
    for name, most in (("min_lr", args.learning_rate), ("min_lr_rate", 1.0)):
        value = options.get(name)
        if isinstance(value, int | float) and value > most:
            yield f"--lr_scheduler_kwargs: {name} {value:g} is above {most:g}: the learning rate rises"


def warmup_line(warmup: float, steps: int, rate: float) -> str:
    """Return the warning about a warm-up that is at least as long as the run.

    warmup, steps: numbers of steps.
    """
    return (
        f"a warm-up of {warmup:,.0f} steps is not over when the run of {steps:,} steps ends: the learning "
        f"rate comes to {rate * (steps - 1) / max(warmup, 1):.3g}, never to {rate:g}; lower --warmup_steps"
    )


def _check_optimizer(args: ArgumentFields) -> Iterator[str]:
    name = optimizer_of(args)
    if args.weight_decay > _MOST_DECAY:
        yield (
            f"--weight_decay {args.weight_decay:g}: a step takes {args.weight_decay:g} times the learning "
            "rate off each weight; usual are 0 to 0.1"
        )
    if name.startswith("adamw") and args.adam_beta1 > args.adam_beta2:
        yield (
            f"--adam_beta1 {args.adam_beta1:g} is above --adam_beta2 {args.adam_beta2:g}: they may be "
            "exchanged (usual are 0.9 and 0.95 to 0.999)"
        )
    if name.startswith("adamw") and args.adam_epsilon == 0:
        yield "--adam_epsilon 0: weights whose gradient is 0 become NaN (0/0); usual is 1e-8"
    if name.startswith("adamw") and args.adam_epsilon > _MOST_EPSILON:
        yield f"--adam_epsilon {args.adam_epsilon:g} outweighs the gradients' size; usual is 1e-8"
    if 0 < args.max_grad_norm < 1e-4:
        yield f"--max_grad_norm {args.max_grad_norm:g} shrinks each gradient to nearly nothing; usual is 1"
    if args.label_smoothing_factor > _MOST_SMOOTHING:
        yield (
            f"--label_smoothing_factor {args.label_smoothing_factor:g} gives most of the target to tokens "
            "that are not there; usual are 0 to 0.1"
        )
    if (args.neftune_noise_alpha or 0) > _MOST_NOISE:
        yield f"--neftune_noise_alpha {args.neftune_noise_alpha:g} drowns the embeddings; usual are 5 to 15"


def _check_length(args: ArgumentFields) -> Iterator[str]:
    if args.max_steps <= 0 and args.num_train_epochs > _MOST_EPOCHS:
        epochs = args.num_train_epochs
        yield f"--num_train_epochs {epochs:g}: each conversation is read {epochs:,.0f} times"
    if args.model_max_length < _FEWEST_TOKENS:
        yield (
            f"--model_max_length {args.model_max_length}: rows of so few tokens have no room for prompt and "
            "reply"
        )


def small_files(max_shard_size: str) -> Iterator[str]:
    """Yield a notice if the files are so small that a unit may be missing. ValueError if it is no size."""
    size = parse_size(max_shard_size)
    if size < _SMALLEST_FILE:
        yield (
            f"--max_shard_size {max_shard_size} is {size:,} bytes: nearly every tensor gets a file of its "
            "own; 5GB and 500MB have their unit"
        )


def _check_files(args: ArgumentFields) -> Iterator[str]:
    yield from small_files(args.max_shard_size)
    if args.save_total_limit is not None and args.save_total_limit < 1 and args.save_strategy != "no":
        yield (
            f"--save_total_limit {args.save_total_limit} keeps every checkpoint, as in transformers; 1 keeps "
            "the newest"
        )


_FEWEST_TOKENS = 16
