"""Fields of TrainingArguments for a run's length, batches, optimizer and evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastsft.arguments.support import ignored, rejected, supported

_KEPT = "the attribute is kept for scripts"


Interval = Literal["no", "steps", "epoch"]
SaveInterval = Literal["no", "steps", "epoch", "best"]


@dataclass
class RunArguments:
    """Output directory, length, seeds, resuming."""

    output_dir: str | None = supported(None, "checkpoints and the final model; unset: trainer_output")
    overwrite_output_dir: bool = supported(
        False, "replace the finished model of another run in output_dir; its checkpoints: --no_resume"
    )
    do_train: bool = ignored(False, "a flag of example scripts", _KEPT, quiet=True)
    do_eval: bool = ignored(False, "a flag of scripts; True when there is evaluation", _KEPT, quiet=True)
    do_predict: bool = ignored(False, "a flag of example scripts", _KEPT)
    num_train_epochs: float = supported(3.0, "epochs, may be fractional")
    max_steps: int = supported(-1, "above 0: optimizer steps, instead of epochs")
    seed: int = supported(42, "random seed of the data's order and all generators")
    data_seed: int | None = supported(None, "random seed of the data's order alone")
    ignore_data_skip: bool = supported(False, "resume from the start of the epoch's data")
    resume_from_checkpoint: str | None = supported(
        None, "a checkpoint, transformers' too; True is the newest, which is the default, False none"
    )
    no_resume: bool = supported(False, "ignore checkpoints in output_dir")
    cache_dir: str | None = supported(None, "where models from the hub are kept")


@dataclass
class BatchArguments:
    """Conversations of a step, and how they are dealt."""

    per_device_train_batch_size: int = supported(8, "conversations of one micro-batch")
    per_device_eval_batch_size: int = supported(8, "conversations of one micro-batch of evaluation")
    per_gpu_train_batch_size: int | None = rejected(
        None, "old name of per_device_train_batch_size", "use --per_device_train_batch_size"
    )
    per_gpu_eval_batch_size: int | None = rejected(
        None, "old name of per_device_eval_batch_size", "use --per_device_eval_batch_size"
    )
    auto_find_batch_size: bool = rejected(
        False, "halve the batch when memory runs out",
        "memory is planned before the first step; set --per_device_train_batch_size",
    )  # fmt: skip
    gradient_accumulation_steps: int = supported(1, "micro-batches of an optimizer step")
    model_max_length: int = supported(512, "longest example in tokens; longer ones are cut")
    average_tokens_across_devices: bool | None = supported(
        True, "divide the loss by the targets of all ranks"
    )
    loss_norm: Literal["global_tokens", "global_labels", "micro_batch"] = supported(
        "global_tokens", "mean over the tokens of a step, or of each micro-batch first",
        "global_labels counts labels before the shift, as transformers 4.46 to early 5.x",
    )  # fmt: skip
    micro_batch_tokens: int | None = supported(
        None, "tokens of one padding-free micro-batch; unset: what fits and is useful"
    )
    train_sampling_strategy: Literal["random", "sequential", "group_by_length"] = supported(
        "random", "order of the data"
    )
    group_by_length: bool = supported(False, "old name of train_sampling_strategy group_by_length")
    length_column_name: str = supported(
        "length", "column with lengths, for group_by_length", "of a datasets.Dataset only"
    )
    remove_unused_columns: bool = supported(
        True, "leave out keys of samples that the model does not take", "native data sets have none"
    )
    dataloader_drop_last: bool = supported(False, "leave out the last, incomplete global batch")
    dataloader_num_workers: int = supported(
        0, "loader processes", "for data sets that are read in every epoch: docs/trainer.md"
    )
    dataloader_pin_memory: bool = ignored(
        True, "pinned memory of batches", "the engine packs rows into pinned memory of its own"
    )
    dataloader_prefetch_factor: int | None = supported(None, "batches ahead of a loader process")
    dataloader_persistent_workers: bool = supported(False, "keep loader processes between epochs")
    dataloader_multiprocessing_context: str | None = supported(None, "start method of loader processes")
    dataloader_in_order: bool = ignored(True, "batches in order", "batches always come in order")
    accelerator_config: dict[str, Any] | str | None = supported(
        None, "a JSON file or object of accelerate's settings of batches",
        "split_batches counts; so does even_batches, whose false raises on several ranks; non_blocking has "
        "no effect; use_seedable_sampler false, dispatch_batches, use_configured_state and num_steps raise; "
        "sync_each_batch is --sync_each_batch",
    )  # fmt: skip
    split_batches: bool | None = supported(
        None, "a micro-batch is one of all ranks", "also in accelerator_config"
    )
    dispatch_batches: bool | None = rejected(
        None, "rank 0 reads for all", "leave it unset: every rank maps the same rows"
    )


_NO_METRICS = "without compute_metrics; with it a value of its own raises"
# Fields that change the calls or the inputs of compute_metrics in transformers, but not in fastsft.
METRIC_FIELDS = (
    "eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics", "include_for_metrics",
    "include_inputs_for_metrics",
)  # fmt: skip


ScheduleName = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]  # fmt: skip


@dataclass
class OptimizerArguments:
    """The optimizer, its schedule, clipping, label smoothing, noise."""

    learning_rate: float = supported(5e-5, "peak learning rate")
    weight_decay: float = supported(0.0, "decoupled, of matrices and embeddings")
    adam_beta1: float = supported(0.9, "decay of the first moment")
    adam_beta2: float = supported(0.999, "decay of the second moment")
    adam_epsilon: float = supported(1e-8, "added to the square root of the second moment")
    max_grad_norm: float = supported(1.0, "clip the global L2 norm; 0 is off")
    lr_scheduler_type: ScheduleName = supported("linear", "schedule of the learning rate")
    lr_scheduler_kwargs: dict[str, Any] | str | None = supported(None, "its options, a JSON object")
    warmup_ratio: float | None = supported(0.0, "share of all steps that warm up")
    warmup_steps: float = supported(0, "steps, or a share of all steps when below 1")
    optim: str = supported(
        "adamw_torch", "optimizer",
        "adamw_torch, adamw_torch_fused, adamw_hf and adamw_apex_fused are the native AdamW; sgd, adafactor, "
        "and adamw_8bit or adamw_bnb_8bit (moments in 8 bits) are native, too; others raise",
    )  # fmt: skip
    optim_args: str | None = rejected(
        None, "options of other optimizers", "leave it out: the optimizers that fastsft has read none"
    )
    optim_target_modules: list[str] | str | None = rejected(
        None, "modules of GaLore, APOLLO, LOMO", "leave it out: the optimizer trains all parameters"
    )
    adafactor: bool = supported(False, "old name of optim adafactor")
    label_smoothing_factor: float = supported(0.0, "share of the target that all tokens get")
    neftune_noise_alpha: float | None = supported(
        None,
        "noise on the embeddings in training",
        "uniform in +-alpha / sqrt(model_max_length * hidden_size)",
    )


@dataclass
class EvaluationArguments:
    """Cadence of evaluation, the best model."""

    evaluation_strategy: Interval | None = supported(None, "old name of eval_strategy")
    eval_strategy: Interval = supported("no", "evaluate by steps, by epochs, or not")
    eval_steps: float | None = supported(
        None, "steps between evaluations, or a share below 1; default logging_steps"
    )
    eval_delay: float = supported(0, "first step or epoch that may be evaluated")
    eval_on_start: bool = supported(False, "also before the first step")
    prediction_loss_only: bool = supported(False, "no predictions, and no compute_metrics")
    bf16_full_eval: bool = supported(
        False,
        "bfloat16 weights in evaluation without training",
        "with --bf16 True, which computes so; without it raises",
    )
    fp16_full_eval: bool = supported(
        False,
        "the same with float16",
        "with --fp16 True, which computes so; without it raises",
    )
    load_best_model_at_end: bool = supported(False, "end with the best checkpoint's weights")
    metric_for_best_model: str | None = supported(None, "metric of the best model; default loss")
    greater_is_better: bool | None = supported(
        None, "direction of the metric; default: not for names that end with loss"
    )
    early_stopping_patience: int | None = supported(
        None, "end the run after this many evaluations in a row whose metric is not better; unset: never"
    )
    early_stopping_threshold: float = supported(
        0.0, "least difference to the best metric that counts as better"
    )
    sample_prompts: str | None = supported(
        None,
        "show replies at every evaluation: to a file of prompts, or to the first N evaluation conversations",
    )
    sample_max_new_tokens: int = supported(64, "most tokens of such a reply")
    sample_temperature: float = supported(0.0, "0 takes the most likely token; above, replies are drawn")
    eval_loss: Literal["baseline", "exact"] = supported(
        "baseline", "mean over samples of their batches' losses, as in transformers, or over all tokens"
    )
    label_names: list[str] | None = ignored(
        None, "keys of labels", "labels are the only ones", only=(None, [], ["labels"])
    )
    eval_accumulation_steps: int | None = ignored(
        None, "steps between moves of predictions to the host", "they move after every batch"
    )
    eval_do_concat_batches: bool = ignored(True, "concatenate predictions", _NO_METRICS)
    eval_use_gather_object: bool = ignored(False, "gather nested predictions", _NO_METRICS)
    batch_eval_metrics: bool = ignored(False, "metrics batch by batch", _NO_METRICS)
    include_for_metrics: list[str] = ignored([], "more inputs of metrics", _NO_METRICS)
    include_inputs_for_metrics: bool = ignored(False, "inputs for metrics", _NO_METRICS)
    jit_mode_eval: bool = ignored(False, "TorchScript in evaluation", "the engine is compiled")
    past_index: int = rejected(-1, "memory of Transformer-XL", "leave it at -1: no supported model has one")
    use_legacy_prediction_loop: bool = rejected(False, "old loop of evaluation", "leave it unset")
