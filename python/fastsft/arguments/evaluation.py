"""When and how the model is evaluated, and which is the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fastsft.arguments.cadence import Interval, settle_cadence
from fastsft.arguments.meaning import inert, refused, used

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments

_NO_METRICS = "without compute_metrics; with it a value of its own raises"
# What changes the inputs or calls of compute_metrics in transformers, and does not here.
OF_METRICS = (
    "eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics", "include_for_metrics",
    "include_inputs_for_metrics",
)  # fmt: skip


@dataclass
class EvaluationArguments:
    """Cadence of evaluation, the best model."""

    evaluation_strategy: Interval | None = used(None, "old name of eval_strategy")
    eval_strategy: Interval = used("no", "evaluate by steps, by epochs, or not")
    eval_steps: float | None = used(
        None, "steps between evaluations, or a share below 1; default logging_steps"
    )
    eval_delay: float = used(0, "first step or epoch that may be evaluated")
    eval_on_start: bool = used(False, "also before the first step")
    prediction_loss_only: bool = used(False, "no predictions, and no compute_metrics")
    bf16_full_eval: bool = used(
        False,
        "bfloat16 weights in evaluation without training",
        "with --bf16 True, which computes so; without it raises",
    )
    fp16_full_eval: bool = refused(False, "the same with float16", "use --bf16_full_eval True")
    load_best_model_at_end: bool = used(False, "end with the best checkpoint's weights")
    metric_for_best_model: str | None = used(None, "metric of the best model; default loss")
    greater_is_better: bool | None = used(
        None, "direction of the metric; default: not for names that end with loss"
    )
    eval_loss: Literal["baseline", "exact"] = used(
        "baseline", "mean over samples of their batches' losses, as in transformers, or over all tokens"
    )
    label_names: list[str] | None = inert(
        None, "keys of labels", "labels are the only ones", only=(None, [], ["labels"])
    )
    eval_accumulation_steps: int | None = inert(
        None, "steps between moves of predictions to the host", "they move after every batch"
    )
    eval_do_concat_batches: bool = inert(True, "concatenate predictions", _NO_METRICS)
    eval_use_gather_object: bool = inert(False, "gather nested predictions", _NO_METRICS)
    batch_eval_metrics: bool = inert(False, "metrics batch by batch", _NO_METRICS)
    include_for_metrics: list[str] = inert([], "more inputs of metrics", _NO_METRICS)
    include_inputs_for_metrics: bool = inert(False, "inputs for metrics", _NO_METRICS)
    jit_mode_eval: bool = inert(False, "TorchScript in evaluation", "the engine is compiled")
    past_index: int = refused(-1, "memory of Transformer-XL", "leave it at -1: no supported model has one")
    use_legacy_prediction_loop: bool = refused(False, "old loop of evaluation", "leave it unset")


def settle_evaluation(args: TrainingArguments) -> None:
    """The old name means the new one; steps of evaluation default to those of logging."""
    if args.evaluation_strategy is not None:
        if args.eval_strategy not in ("no", args.evaluation_strategy):
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
    if args.bf16_full_eval and not args.bf16:
        raise ValueError(
            "fastsft does not support --bf16_full_eval without --bf16: training and evaluation share their "
            "weights; use --bf16 True"
        )
    settle_cadence(args, "eval")


def settle_best_model(args: TrainingArguments) -> None:
    """Metric and direction; the best model must have been saved. Source: trainer_arguments.md, section 6."""
    plateau = args.lr_scheduler_type == "reduce_lr_on_plateau"
    if args.load_best_model_at_end and args.save_strategy != "best":
        _check_saved_when_evaluated(args)
    if (args.load_best_model_at_end or plateau) and args.metric_for_best_model is None:
        args.metric_for_best_model = "loss"
    if args.greater_is_better is None and args.metric_for_best_model is not None:
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")


def _check_saved_when_evaluated(args: TrainingArguments) -> None:
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
