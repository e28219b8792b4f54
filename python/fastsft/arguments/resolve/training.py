"""Resolves the arguments about a run's length, optimizer, evaluations and best model."""

from __future__ import annotations

import math
import os
from typing import Any

from fastsft.arguments.engine_flags import OPTIMIZERS, optimizer_of
from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import was_given
from fastsft.arguments.values import json_object
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import check_name


def resolve_run(args: ArgumentFields) -> None:
    """Resolve the output directory, and check the run's length.

    For resume_from_checkpoint, the text "true" becomes True (the newest checkpoint); the text "false" becomes
    None, and sets no_resume.
    """
    if args.output_dir is not None and not args.output_dir.strip():
        raise ValueError(
            "--output_dir: expected a directory, got an empty text (an empty variable of the shell?); leave "
            "it out for trainer_output"
        )
    args.output_dir = os.path.expanduser(args.output_dir or "trainer_output")
    for name in ("output_dir", "resume_from_checkpoint"):
        if isinstance(path := getattr(args, name), str):
            check_name(path, f"--{name}")
    if args.max_steps == 0:
        raise ValueError(
            "--max_steps: expected the number of steps, or -1 for num_train_epochs, got 0, with which "
            "transformers trains one step; Trainer(...).evaluate() evaluates without training"
        )
    if args.max_steps <= 0 and args.num_train_epochs <= 0:
        raise ValueError(
            f"--num_train_epochs: expected more than 0, got {args.num_train_epochs}; or give "
            "--max_steps above 0; Trainer(...).evaluate() evaluates without training"
        )
    word = str(args.resume_from_checkpoint).lower()
    if args.no_resume and args.resume_from_checkpoint and word != "false":
        raise ValueError(
            f"--no_resume True and --resume_from_checkpoint {args.resume_from_checkpoint}: expected one "
            "of the "
            "two, got both; leave --no_resume out to go on from that checkpoint, or the other to start from "
            "step 0"
        )
    if word == "true":
        args.resume_from_checkpoint = True  # type: ignore[assignment]
    elif word == "false":
        args.resume_from_checkpoint, args.no_resume = None, True


_NOT_NEGATIVE_OPTIONS = {
    "min_lr", "min_lr_rate", "lr_end", "power", "num_cycles", "timescale", "patience", "cooldown", "factor",
    "eps", "num_decay_steps", "num_stable_steps", "min_lr_ratio", "warmup_lr_rate",
}  # fmt: skip


def resolve_optimizer(args: ArgumentFields) -> None:
    """Check optimizer, label smoothing and schedule; resolve the warm-up to a step count or a fraction."""
    _resolve_optimizer_name(args)
    if not 0 <= args.label_smoothing_factor < 1:
        raise ValueError(
            f"--label_smoothing_factor: expected 0 or more and below 1, got {args.label_smoothing_factor}"
        )
    if args.neftune_noise_alpha is not None and args.neftune_noise_alpha < 0:
        raise ValueError(f"--neftune_noise_alpha: expected 0 or more, got {args.neftune_noise_alpha}")
    if args.lr_scheduler_type == "reduce_lr_on_plateau" and args.eval_strategy == "no":
        raise ValueError("--lr_scheduler_type reduce_lr_on_plateau needs --eval_strategy steps or epoch")
    if args.lr_scheduler_kwargs is not None:
        args.lr_scheduler_kwargs = json_object("lr_scheduler_kwargs", args.lr_scheduler_kwargs)
        _check_options(args.lr_scheduler_kwargs)
    _resolve_warmup(args)
    if args.max_grad_norm is None:  # as in transformers, None switches clipping off
        args.max_grad_norm = 0.0


def _check_options(options: dict[str, Any]) -> None:
    for name in _NOT_NEGATIVE_OPTIONS & options.keys():
        value = options[name]
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ValueError(f"--lr_scheduler_kwargs: {name}: expected 0 or more, got {value}")


def _resolve_optimizer_name(args: ArgumentFields) -> None:
    if args.adafactor:
        if was_given(args, "optim") and args.optim != "adafactor":
            raise ValueError(
                f"--adafactor True is the old name of --optim adafactor, which is {args.optim}; give one of "
                "the two"
            )
        warn_once("--adafactor is an old name; --optim adafactor is used")
        args.optim = "adafactor"
    if args.optim not in OPTIMIZERS:
        named = ", ".join(name for name in OPTIMIZERS if name != "adamw_torch")
        raise ValueError(
            f"fastsft does not support --optim {args.optim}; use --optim adamw_torch, or {named}"
        )
    names_dtype = args.optim_dtype != "float32" or was_given(args, "optim_dtype")
    if optimizer_of(args) != "adamw" and names_dtype:
        raise ValueError(
            f"--optim_dtype {args.optim_dtype} is about AdamW's moments, which --optim {args.optim} does not "
            "have; leave it out"
        )


def _resolve_warmup(args: ArgumentFields) -> None:
    args.warmup_ratio = args.warmup_ratio or 0.0
    if not 0 <= args.warmup_ratio <= 1:
        raise ValueError(f"--warmup_ratio: expected a share from 0 to 1, got {args.warmup_ratio}")
    if args.warmup_steps < 0 or (args.warmup_steps >= 1 and args.warmup_steps != int(args.warmup_steps)):
        raise ValueError(
            f"--warmup_steps: expected a number of steps or a share below 1, got {args.warmup_steps}"
        )
    if args.warmup_steps >= 1 or args.warmup_steps == 0:
        args.warmup_steps = int(args.warmup_steps)
    if args.warmup_steps and args.warmup_ratio:
        warn_once("--warmup_steps and --warmup_ratio are both given; --warmup_steps counts")
    elif args.warmup_ratio and was_given(args, "warmup_steps"):
        warn_once(f"--warmup_steps 0 names no steps: --warmup_ratio {args.warmup_ratio} counts")


# Metrics that `Trainer.evaluate` returns without compute_metrics; their names have the prefix eval_.
_METRICS = ("loss", "runtime", "samples_per_second", "steps_per_second")


def resolve_evaluation(args: ArgumentFields) -> None:
    """Resolve the evaluation interval; eval_steps defaults to logging_steps."""
    if args.evaluation_strategy is not None:
        differs = args.eval_strategy != args.evaluation_strategy
        if differs and (args.eval_strategy != "no" or was_given(args, "eval_strategy")):
            raise ValueError(
                f"--evaluation_strategy {args.evaluation_strategy} is the old name of --eval_strategy, "
                f"which is {args.eval_strategy}; give one of the two"
            )
        args.eval_strategy = args.evaluation_strategy
    args.do_eval = args.do_eval or args.eval_strategy != "no"
    if args.eval_strategy == "steps" and not args.eval_steps:
        if args.logging_steps <= 0:
            raise ValueError("--eval_strategy steps needs --eval_steps or --logging_steps above 0")
        args.eval_steps = args.logging_steps
    args.eval_delay = args.eval_delay or 0
    for name in ("bf16", "fp16"):
        if getattr(args, f"{name}_full_eval") and not getattr(args, name):
            raise ValueError(
                f"fastsft does not support --{name}_full_eval without --{name}: training and evaluation "
                f"share their weights; use --{name} True"
            )
    resolve_cadence(args, "eval")
    _resolve_samples(args)


def _resolve_samples(args: ArgumentFields) -> None:
    if args.sample_prompts is None:
        return
    args.sample_prompts = given = str(args.sample_prompts)  # a script may give a number
    if given.lstrip("-").isdigit() and int(given) < 1:
        raise ValueError(f"--sample_prompts: expected at least 1 conversation, or a file, got {given}")
    if args.eval_strategy == "no" and not args.eval_on_start:
        raise ValueError(
            f"--sample_prompts {given} asks for replies at evaluations, and --eval_strategy is no; give "
            "--eval_strategy epoch, or steps with --eval_steps"
        )


def resolve_best_model(args: ArgumentFields) -> None:
    """Resolve metric_for_best_model and greater_is_better; check that the best model will be saved.

    The rules are in docs/spec/trainer_arguments.md, section 6.
    """
    stops = args.early_stopping_patience is not None
    if stops and args.eval_strategy == "no":
        raise ValueError(
            f"--early_stopping_patience {args.early_stopping_patience} counts evaluations, and "
            "--eval_strategy is no; give --eval_strategy epoch, or steps with --eval_steps"
        )
    plateau = args.lr_scheduler_type == "reduce_lr_on_plateau"
    best = args.save_strategy == "best"
    if args.load_best_model_at_end and not best:
        _check_saved_when_evaluated(args)
    if (args.load_best_model_at_end or plateau or best or stops) and args.metric_for_best_model is None:
        args.metric_for_best_model = "loss"
    if args.greater_is_better is None and args.metric_for_best_model is not None:
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")


def check_best_of_command(args: ArgumentFields, has_data: bool) -> None:
    """Raise ValueError if a run of the command would never find a best model.

    has_data: True if there is evaluation data. Scripts are not checked, because they may add metrics and
    evaluations.
    """
    evaluates = has_data and args.eval_strategy != "no"
    if args.save_strategy == "best" and not evaluates:
        missing = "without --eval_data_path" if not has_data else "with --eval_strategy no"
        raise ValueError(
            f"--save_strategy best {missing} would never save a checkpoint: nothing is evaluated; give "
            "--eval_data_path FILE or --eval_split 0.05, and --eval_strategy epoch (or steps), or another "
            "--save_strategy"
        )
    if args.load_best_model_at_end and not evaluates:
        warn_once(
            "--load_best_model_at_end has no effect: nothing is evaluated; give --eval_split 0.05 (or "
            "--eval_data_path FILE), --eval_strategy epoch and --save_strategy epoch"
        )
    name, metrics = args.metric_for_best_model, ", ".join(f"eval_{metric}" for metric in _METRICS)
    if evaluates and name is not None and name.removeprefix("eval_") not in _METRICS:
        raise ValueError(
            f"--metric_for_best_model {name}: expected loss, got a metric that this command does not compute "
            f"(its evaluations have {metrics}); leave it out, or write a script that gives compute_metrics "
            "to Trainer"
        )


def _check_saved_when_evaluated(args: ArgumentFields) -> None:
    need = "--load_best_model_at_end"
    if args.eval_strategy != args.save_strategy:
        raise ValueError(
            f"{need} requires the save and eval strategy to match, but --eval_strategy is "
            f"{args.eval_strategy} and --save_strategy {args.save_strategy}; give both alike"
        )
    if args.eval_strategy != "steps":
        return
    save, evaluate = args.save_steps, args.eval_steps or 1
    shares = (save < 1) + (evaluate < 1)
    if shares == 1:
        raise ValueError(
            f"{need} needs save_steps that are a multiple of eval_steps, which a share and a number of steps "
            f"are not for every length: --save_steps {save} --eval_steps {evaluate}"
        )
    scale = 1_000_000 if shares else 1  # transformers also scales two fractions before it compares them
    if (save * scale) % (evaluate * scale):
        raise ValueError(
            f"{need} requires the saving steps to be a round multiple of the evaluation steps: --save_steps "
            f"{save} is none of --eval_steps {evaluate}"
        )


def resolve_cadence(args: object, kind: str) -> None:
    """Check the field <kind>_steps if <kind>_strategy is "steps".

    ValueError unless the number is above 0, and an integer if above 1.
    """
    steps = getattr(args, f"{kind}_steps")
    if getattr(args, f"{kind}_strategy") != "steps":
        return
    if steps <= 0:
        raise ValueError(f"--{kind}_steps: expected a number above 0, got {steps}")
    if steps > 1:
        if steps != int(steps):
            raise ValueError(f"--{kind}_steps must be an integer if bigger than 1: {steps}")
        setattr(args, f"{kind}_steps", int(steps))
