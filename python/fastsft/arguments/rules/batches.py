"""Sizes of batches, the order of the data, loader processes."""

from __future__ import annotations

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import was_given
from fastsft.arguments.rules.accelerator import settle_accelerator

_AT_LEAST_ONE = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
    "model_max_length", "micro_batch_tokens",
)  # fmt: skip


def settle_batches(args: ArgumentFields) -> None:
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


def _settle_order(args: ArgumentFields) -> None:
    order = args.train_sampling_strategy
    is_named = order != "random" or was_given(args, "train_sampling_strategy")
    asks = args.group_by_length or was_given(args, "group_by_length")
    if is_named and asks and args.group_by_length != (order == "group_by_length"):
        off = "" if args.group_by_length else " False"
        raise ValueError(
            f"--group_by_length{off} and --train_sampling_strategy {order} contradict each other; give one"
        )
    if args.group_by_length:
        args.train_sampling_strategy = "group_by_length"
    args.group_by_length = args.train_sampling_strategy == "group_by_length"


def _settle_loader(args: ArgumentFields) -> None:
    if args.dataloader_num_workers < 0:
        raise ValueError(f"--dataloader_num_workers: expected 0 or more, got {args.dataloader_num_workers}")
    if args.dataloader_num_workers == 0 and args.dataloader_prefetch_factor is not None:
        raise ValueError(
            "--dataloader_prefetch_factor can only be set when data is loaded in a different process, i.e. "
            "when --dataloader_num_workers > 0"
        )
    if args.use_cpu or args.no_cuda:
        args.dataloader_pin_memory = False
