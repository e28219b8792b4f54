"""Arguments of evaluation and of the choice of the best model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.intervals import Interval
from fastsft.arguments.support import inert, refused, used

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
    fp16_full_eval: bool = used(
        False,
        "the same with float16",
        "with --fp16 True, which computes so; without it raises",
    )
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
