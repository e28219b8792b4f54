"""What is known at the start is refused at the start, not after hours of training."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.arguments.evaluation import OF_METRICS
from fastsft.arguments.meaning import default_of
from fastsft.notices import warn_once

# Methods of transformers' Trainer that a subclass may override there, and that nothing calls here.
_OF_THE_ENGINE = (
    "compute_loss", "training_step", "prediction_step", "evaluation_loop", "prediction_loop",
    "create_optimizer", "create_scheduler", "create_optimizer_and_scheduler", "get_decay_parameter_names",
    "get_optimizer_cls_and_kwargs", "autocast_smart_context_manager", "compute_loss_context_manager",
    "get_batch_samples", "_inner_training_loop", "_prepare_inputs", "_get_train_sampler", "_get_eval_sampler",
    "_wrap_model", "_save_checkpoint", "_maybe_log_save_evaluate", "_determine_best_metric", "_evaluate",
    "floating_point_ops", "_remove_unused_columns",
)  # fmt: skip
_OF_FILES = (
    "_save", "_load_best_model", "_load_from_checkpoint", "_rotate_checkpoints",
    "_save_optimizer_and_scheduler",
)  # fmt: skip
_LOADERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")
_STEP = "the step is the engine's"
# Names, why nothing calls them, and the way out.
_NEVER_CALLED = (
    (_OF_THE_ENGINE, _STEP, "loss, optimizer and schedule are chosen by the arguments"),
    (_LOADERS, _STEP, "give the rows as train_dataset and eval_dataset"),
    (_OF_FILES, "checkpoints are fastsft's own", "a callback's on_save hears of each"),
)


def check_before_training(model: Any, args: TrainingArguments, eval_dataset: Any) -> None:
    """ValueError for a model that is none of ours, and for evaluation without data."""
    if not hasattr(model, "build"):
        raise ValueError(
            f"Trainer: expected model to be a fastsft.model.CausalLM or a directory, got "
            f"{type(model).__name__}; CausalLM.from_pretrained(directory) makes one"
        )
    if eval_dataset is None and (args.eval_strategy != "no" or args.eval_on_start):
        wanted = "eval_on_start" if args.eval_on_start else f"eval_strategy {args.eval_strategy}"
        raise ValueError(
            f"--{wanted} needs data to evaluate on: give --eval_data_path (eval_dataset of Trainer)"
        )


def leave_out_evaluation(args: TrainingArguments) -> None:
    """Evaluation without data to evaluate on, as FastChat's scripts ask for: told, and left out.

    Nothing is left out where a result would be missed: there `check_before_training` refuses.
    """
    needed = (
        args.eval_on_start
        or args.load_best_model_at_end
        or args.save_strategy == "best"
        or args.lr_scheduler_type == "reduce_lr_on_plateau"
    )
    if args.eval_strategy != "no" and not needed:
        warn_once(
            f"--eval_strategy {args.eval_strategy} has no --eval_data_path: nothing is evaluated in this run"
        )
        args.eval_strategy, args.evaluation_strategy = "no", None


def check_own_step(kind: type, base: type, **given: Any) -> None:
    """ValueError for what the engine's step would leave out without a word.

    kind: a class derived from `base`, whose methods that nothing calls are refused. given: arguments of
    transformers' Trainer that are not None although they have no place here.
    """
    for names, whose, instead in _NEVER_CALLED:
        for name in names:
            if _is_overridden(kind, base, name):
                raise ValueError(
                    f"{kind.__name__}.{name} would never be called: {whose}; {instead}, or train with "
                    "transformers' Trainer"
                )
    if _is_overridden(kind, base, "save_model"):
        warn_once(
            f"{kind.__name__}.save_model: checkpoints do not go through it, only the calls of your script; "
            "a callback's on_save hears of each checkpoint"
        )
    for name, value in given.items():
        if value is not None and value != (None, None):
            raise ValueError(
                f"Trainer: {name} has no place here: the step is the engine's; leave it out (the model is "
                "given itself or as its directory; loss, optimizer and schedule by the arguments)"
            )


def _is_overridden(kind: type, base: type, name: str) -> bool:
    return getattr(kind, name, None) is not getattr(base, name, None)


def check_metrics(args: TrainingArguments, compute_metrics: Any) -> None:
    """ValueError for arguments that would change what compute_metrics gets in transformers."""
    defaults = {field.name: default_of(field) for field in dataclasses.fields(TrainingArguments)}
    for name in OF_METRICS if compute_metrics is not None else ():
        if getattr(args, name) != defaults[name]:
            raise ValueError(
                f"--{name} {getattr(args, name)}: compute_metrics gets predictions and label_ids of all rows "
                "at once; leave it out"
            )
