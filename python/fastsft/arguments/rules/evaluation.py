"""Cadence of evaluation, and which model is the best."""

from __future__ import annotations

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import was_given
from fastsft.arguments.intervals import settle_cadence

# What `Trainer.evaluate` reports without compute_metrics, after eval_.
_EVALUATED = ("loss", "runtime", "samples_per_second", "steps_per_second")


def settle_evaluation(args: ArgumentFields) -> None:
    """The old name means the new one; steps of evaluation default to those of logging."""
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
    settle_cadence(args, "eval")


def settle_best_model(args: ArgumentFields) -> None:
    """Metric and direction; the best model has been saved (docs/spec/trainer_arguments.md, section 6)."""
    plateau = args.lr_scheduler_type == "reduce_lr_on_plateau"
    best = args.save_strategy == "best"
    if args.load_best_model_at_end and not best:
        _check_saved_when_evaluated(args)
    if (args.load_best_model_at_end or plateau or best) and args.metric_for_best_model is None:
        args.metric_for_best_model = "loss"
    if args.greater_is_better is None and args.metric_for_best_model is not None:
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")


def check_best_of_command(args: ArgumentFields, has_data: bool) -> None:
    """ValueError for a best model that a run without compute_metrics and callbacks would never find.

    has_data: whether there are data to evaluate on. Not for scripts, whose evaluations may have more metrics
    and come at any step.
    """
    evaluates = has_data and args.eval_strategy != "no"
    if args.save_strategy == "best" and not evaluates:
        missing = "without --eval_data_path" if not has_data else "with --eval_strategy no"
        raise ValueError(
            f"--save_strategy best {missing} would never save a checkpoint: nothing is evaluated; give "
            "--eval_data_path FILE and --eval_strategy epoch (or steps), or another --save_strategy"
        )
    name, known = args.metric_for_best_model, ", ".join(f"eval_{each}" for each in _EVALUATED)
    if evaluates and name is not None and name.removeprefix("eval_") not in _EVALUATED:
        raise ValueError(
            f"--metric_for_best_model {name}: expected loss, got a metric that this command does not compute "
            f"(its evaluations have {known}); leave it out, or write a script that gives compute_metrics to "
            "Trainer"
        )


def _check_saved_when_evaluated(args: ArgumentFields) -> None:
    need = "--load_best_model_at_end"
    if args.eval_strategy != args.save_strategy:
        raise ValueError(
            f"{need} requires the save and eval strategy to match, but --eval_strategy is "
            f"{args.eval_strategy} and --save_strategy {args.save_strategy}"
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
    scale = 1_000_000 if shares else 1  # as transformers compares two shares
    if (save * scale) % (evaluate * scale):
        raise ValueError(
            f"{need} requires the saving steps to be a round multiple of the evaluation steps: --save_steps "
            f"{save} is none of --eval_steps {evaluate}"
        )
