"""Checks of arguments and data before training starts."""

from __future__ import annotations

import dataclasses
import json
import os

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.arguments.support import default_of
from fastsft.arguments.training_fields import METRIC_FIELDS
from fastsft.callbacks.state import TrainerState
from fastsft.model.causal_lm import CausalLM
from fastsft.runtime.given_types import can_be_iterated, check_tokenizer_type
from fastsft.runtime.messages import warn_once


def check_before_training(model: object, args: TrainingArguments, eval_dataset: object) -> None:
    """Raise ValueError for a model that fastsft cannot train, and for evaluation without data.

    Warn if --save_strategy best is given without evaluations. This is no error, since a callback may request
    evaluations.
    """
    if not hasattr(model, "build"):
        way = "give model, such as the path of its directory"
        if hasattr(model, "module"):
            way = "take a wrapper off (model.module of DataParallel)"
        raise ValueError(
            f"Trainer: expected model to be a directory, a Llama-family model of transformers or a "
            f"fastsft.CausalLM, got {type(model).__name__}; {way}"
        )
    if eval_dataset is None and (args.eval_strategy != "no" or args.eval_on_start):
        wanted = "eval_on_start" if args.eval_on_start else f"eval_strategy {args.eval_strategy}"
        raise ValueError(
            f"--{wanted} needs data to evaluate on: give --eval_data_path or --eval_split (eval_dataset of "
            "Trainer)"
        )
    if args.save_strategy == "best" and args.eval_strategy == "no":
        warn_once(
            "--save_strategy best with --eval_strategy no: no checkpoint is saved unless a callback asks for "
            "an evaluation (control.should_evaluate)"
        )


def check_context_ranks(model: CausalLM, args: TrainingArguments) -> None:
    """Raise ValueError if --context_parallel_size does not divide the model's heads.

    Also with the generic engine, and with --group_by_length, whose rows are read item by item.
    """
    size = args.context_parallel_size
    if size == 1:
        return
    if args.train_sampling_strategy == "group_by_length":
        raise ValueError(
            f"--context_parallel_size {size}: ranks share no rows that are read item by item, as "
            "--group_by_length True reads them; leave one of the two out"
        )
    is_native = model.engine_kind == "native"
    _C.check_context_ranks(json.dumps(model.engine_config()) if is_native else None, size)


def check_data(**data_sets: object) -> None:
    """Raise TypeError for data sets that are the name of a file. data_sets: by their arguments' names."""
    for name, rows in data_sets.items():
        if isinstance(rows, str | os.PathLike):
            raise TypeError(
                f"{name}: expected rows with input_ids and labels, got the name {str(rows)!r}; files are "
                "read by fastsft.train.make_supervised_data_module, and by fastsft.launch(data_path=...)"
            )


def check_given(callbacks: object, tokenizer: object) -> None:
    """Raise TypeError for callbacks that are no list, and for the name of a tokenizer in its place."""
    if callbacks is not None and not can_be_iterated(callbacks):
        raise TypeError(f"callbacks: expected a list, got {callbacks!r:.60}; write callbacks=[...]")
    if isinstance(tokenizer, str | os.PathLike):
        check_tokenizer_type(tokenizer, "Trainer: tokenizer")


def check_functions(**functions: object) -> None:
    """Raise TypeError for values other than functions and None. functions: by their arguments' names."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name}: expected a function, got {function!r:.60}; give one, or leave it out")


def check_metrics(args: TrainingArguments, compute_metrics: object) -> None:
    """Raise ValueError for arguments with which transformers would change the input of compute_metrics."""
    if compute_metrics is not None and not callable(compute_metrics):
        raise TypeError(
            f"compute_metrics: expected a function of an EvalPrediction, got {compute_metrics!r:.60}; write "
            "one that returns a dictionary"
        )
    defaults = {field.name: default_of(field) for field in dataclasses.fields(TrainingArguments)}
    for name in METRIC_FIELDS if compute_metrics is not None else ():
        if getattr(args, name) != defaults[name]:
            raise ValueError(
                f"--{name} {getattr(args, name)}: compute_metrics gets predictions and label_ids of all rows "
                "at once; leave it out"
            )


def disable_evaluation(args: TrainingArguments) -> None:
    """Turn evaluation off, with a warning, for a run without evaluation data.

    FastChat's scripts request evaluation even without data. If the best model or the schedule depends on
    evaluations, they stay on, and `check_before_training` rejects the run.
    """
    needed = (
        args.eval_on_start
        or args.load_best_model_at_end
        or args.save_strategy == "best"
        or args.lr_scheduler_type == "reduce_lr_on_plateau"
        or args.early_stopping_patience is not None
        or args.sample_prompts is not None
    )
    if args.eval_strategy != "no" and not needed:
        warn_once(
            f"--eval_strategy {args.eval_strategy} has no --eval_data_path or --eval_split: nothing is "
            "evaluated in this run"
        )
        args.eval_strategy, args.evaluation_strategy = "no", None


def warn_of_no_evaluation(args: TrainingArguments) -> None:
    """Warn if the arguments request no evaluation. Called for a run that has evaluation data."""
    if args.eval_strategy == "no" and not args.eval_on_start:
        warn_once(
            "there is data to evaluate on, and nothing evaluates on it: give --eval_strategy epoch, or steps"
        )


def warn_without_evaluations(args: TrainingArguments, state: TrainerState, steps_per_epoch: int) -> None:
    """Warn once if no step of the run is evaluated although flags wait for an evaluation."""
    last, delay = state.max_steps, args.eval_delay or 0
    if args.eval_strategy == "steps":
        every = state.eval_steps
        is_evaluated = last // every * every >= max(delay, 1)
        given = f"--eval_steps {every:g}"
    else:
        is_evaluated, given = last / steps_per_epoch >= delay, f"--eval_strategy {args.eval_strategy}"
    waiting = [
        name
        for name in ("early_stopping_patience", "sample_prompts")
        if getattr(args, name) is not None and not (name == "sample_prompts" and args.eval_on_start)
    ]
    if waiting and not is_evaluated:
        delayed = f" with --eval_delay {delay:g}" if delay else ""
        warn_once(
            f"--{' and --'.join(waiting)} will have no effect: the run has {last:,} steps, of which "
            f"{given}{delayed} evaluates none (unless a callback asks for it); evaluate more often"
        )
