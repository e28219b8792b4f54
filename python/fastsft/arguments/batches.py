"""What a micro-batch and an optimizer step are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fastsft.arguments.accelerator import settle_accelerator
from fastsft.arguments.meaning import inert, refused, used

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments

_AT_LEAST_ONE = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
    "model_max_length", "micro_batch_tokens",
)  # fmt: skip


@dataclass
class BatchArguments:
    """Conversations of a step, and how they are dealt."""

    per_device_train_batch_size: int = used(8, "conversations of one micro-batch")
    per_device_eval_batch_size: int = used(8, "the same, for evaluation")
    per_gpu_train_batch_size: int | None = refused(
        None, "old name of per_device_train_batch_size", "use --per_device_train_batch_size"
    )
    per_gpu_eval_batch_size: int | None = refused(
        None, "old name of per_device_eval_batch_size", "use --per_device_eval_batch_size"
    )
    auto_find_batch_size: bool = refused(
        False, "halve the batch when memory runs out",
        "memory is planned before the first step; set --per_device_train_batch_size",
    )  # fmt: skip
    gradient_accumulation_steps: int = used(1, "micro-batches of an optimizer step")
    model_max_length: int = used(512, "longest example in tokens; longer ones are cut")
    average_tokens_across_devices: bool | None = used(True, "divide the loss by the targets of all ranks")
    loss_norm: Literal["global_tokens", "global_labels", "micro_batch"] = used(
        "global_tokens", "mean over the tokens of a step, or of each micro-batch first",
        "global_labels counts labels before the shift, as transformers 4.46 to early 5.x",
    )  # fmt: skip
    micro_batch_tokens: int | None = used(
        None, "tokens of one padding-free micro-batch; unset: what fits and is useful"
    )
    train_sampling_strategy: Literal["random", "sequential", "group_by_length"] = used(
        "random", "order of the data"
    )
    group_by_length: bool = used(False, "old name of train_sampling_strategy group_by_length")
    length_column_name: str = used(
        "length", "column with lengths, for group_by_length", "of a datasets.Dataset only"
    )
    remove_unused_columns: bool = used(
        True, "leave out keys of samples that the model does not take", "native data sets have none"
    )
    dataloader_drop_last: bool = used(False, "leave out the last, incomplete global batch")
    dataloader_num_workers: int = used(
        0, "loader processes", "for data sets that are read in every epoch: docs/trainer.md"
    )
    dataloader_pin_memory: bool = inert(
        True, "pinned memory of batches", "the engine packs rows into pinned memory of its own"
    )
    dataloader_prefetch_factor: int | None = used(None, "batches ahead of a loader process")
    dataloader_persistent_workers: bool = used(False, "keep loader processes between epochs")
    dataloader_multiprocessing_context: str | None = used(None, "start method of loader processes")
    dataloader_in_order: bool = inert(True, "batches in order", "batches always come in order")
    accelerator_config: dict[str, Any] | str | None = used(
        None, "a JSON file or object of accelerate's settings of batches",
        "split_batches, even_batches, use_seedable_sampler; non_blocking has no effect; "
        "dispatch_batches and num_steps raise",
    )  # fmt: skip
    split_batches: bool | None = used(None, "a micro-batch is one of all ranks", "also in accelerator_config")
    dispatch_batches: bool | None = refused(
        None, "rank 0 reads for all", "leave it unset: every rank maps the same rows"
    )


def settle_batches(args: TrainingArguments) -> None:
    """Sizes are at least one; old names of the order of the data mean the new one."""
    for name in _AT_LEAST_ONE:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name}: expected at least 1, got {value}")
    if args.loss_norm == "global_labels" and args.label_smoothing_factor:
        raise ValueError(
            "--loss_norm global_labels: transformers' label smoothing counts labels after the shift; leave "
            "out --label_smoothing_factor, or use --loss_norm global_tokens"
        )
    _settle_order(args)
    _settle_loader(args)
    settle_accelerator(args)


def _settle_order(args: TrainingArguments) -> None:
    if args.group_by_length:
        if args.train_sampling_strategy == "sequential":
            raise ValueError(
                "--group_by_length and --train_sampling_strategy sequential contradict each other; give one"
            )
        args.train_sampling_strategy = "group_by_length"
    args.group_by_length = args.train_sampling_strategy == "group_by_length"


def _settle_loader(args: TrainingArguments) -> None:
    if args.dataloader_num_workers < 0:
        raise ValueError(f"--dataloader_num_workers: expected 0 or more, got {args.dataloader_num_workers}")
    if args.dataloader_num_workers == 0 and args.dataloader_prefetch_factor is not None:
        raise ValueError(
            "--dataloader_prefetch_factor can only be set when data is loaded in a different process, i.e. "
            "when --dataloader_num_workers > 0"
        )
    if args.use_cpu or args.no_cuda:
        args.dataloader_pin_memory = False
