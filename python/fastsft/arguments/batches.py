"""Contents of a micro-batch and of an optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastsft.arguments.support import inert, refused, used


@dataclass
class BatchArguments:
    """Conversations of a step, and how they are dealt."""

    per_device_train_batch_size: int = used(8, "conversations of one micro-batch")
    per_device_eval_batch_size: int = used(8, "conversations of one micro-batch of evaluation")
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
        "split_batches counts; so does even_batches, whose false raises on several ranks; non_blocking has "
        "no effect; use_seedable_sampler false, dispatch_batches, use_configured_state and num_steps raise; "
        "sync_each_batch is --sync_each_batch",
    )  # fmt: skip
    split_batches: bool | None = used(None, "a micro-batch is one of all ranks", "also in accelerator_config")
    dispatch_batches: bool | None = refused(
        None, "rank 0 reads for all", "leave it unset: every rank maps the same rows"
    )
