"""Resolves arguments about batches: sizes, order of the data, loader processes, and `--accelerator_config`.

The rules are in docs/spec/trainer_arguments.md, section 2, and docs/spec/trainer_semantics.md, section 4.
"""

from __future__ import annotations

from typing import Any

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.for_transformers import AcceleratorSettings
from fastsft.arguments.given import was_given
from fastsft.arguments.values import json_file_or_object, truth
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

_AT_LEAST_ONE = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
    "model_max_length", "micro_batch_tokens", "context_parallel_size",
)  # fmt: skip


def resolve_batches(args: ArgumentFields) -> None:
    """Check batch sizes, and resolve the data's order, loader processes and accelerate's settings."""
    for name in _AT_LEAST_ONE:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name}: expected at least 1, got {value}")
    size, ranks = args.context_parallel_size, launch().world_size
    if ranks % size:
        raise ValueError(
            f"--context_parallel_size: expected a divisor of the {ranks} rank{'s' * (ranks > 1)}, "
            f"got {size}; "
            f"start a multiple of {size} ranks (FASTSFT_NUM_PROCESSES={size}, or torchrun --nproc_per_node "
            f"{size}), or leave it out"
        )
    if args.loss_norm == "global_labels" and args.label_smoothing_factor:
        raise ValueError(
            "--loss_norm global_labels: transformers' label smoothing counts labels after the shift; leave "
            "out --label_smoothing_factor, or use --loss_norm global_tokens"
        )
    _resolve_order(args)
    _resolve_loader(args)
    _resolve_accelerator(args)


def _resolve_order(args: ArgumentFields) -> None:
    order = args.train_sampling_strategy
    order_given = order != "random" or was_given(args, "train_sampling_strategy")
    group_given = args.group_by_length or was_given(args, "group_by_length")
    if order_given and group_given and args.group_by_length != (order == "group_by_length"):
        off = "" if args.group_by_length else " False"
        raise ValueError(
            f"--group_by_length{off} and --train_sampling_strategy {order} contradict each other; give one"
        )
    if args.group_by_length:
        args.train_sampling_strategy = "group_by_length"
    args.group_by_length = args.train_sampling_strategy == "group_by_length"


def _resolve_loader(args: ArgumentFields) -> None:
    if args.dataloader_num_workers < 0:
        raise ValueError(f"--dataloader_num_workers: expected 0 or more, got {args.dataloader_num_workers}")
    if args.dataloader_num_workers == 0 and args.dataloader_prefetch_factor is not None:
        raise ValueError(
            "--dataloader_prefetch_factor can only be set when data is loaded in a different process, i.e. "
            "when --dataloader_num_workers > 0; leave it out"
        )
    if args.use_cpu or args.no_cuda:
        args.dataloader_pin_memory = False


# Keys and defaults of transformers' AcceleratorConfig.
ACCELERATOR_DEFAULTS: dict[str, Any] = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
    "non_blocking": False,
    "gradient_accumulation_kwargs": None,
    "use_configured_state": False,
}


def _resolve_accelerator(args: ArgumentFields) -> None:
    """Convert accelerator_config to a dictionary with all keys. ValueError for unsupported settings."""
    given = json_file_or_object("accelerator_config", args.accelerator_config)
    unknown = sorted(set(given) - set(ACCELERATOR_DEFAULTS))
    if unknown:
        raise ValueError(
            f"--accelerator_config: unknown keys {unknown}; known: {', '.join(ACCELERATOR_DEFAULTS)}"
        )
    settings = {**ACCELERATOR_DEFAULTS, **given}
    if args.split_batches is not None:
        if "split_batches" in given and truth(given["split_batches"]) != args.split_batches:
            raise ValueError("--split_batches contradicts split_batches of --accelerator_config; give one")
        settings["split_batches"] = args.split_batches
    for name in ("split_batches", "even_batches", "use_seedable_sampler", "non_blocking"):
        settings[name] = truth(settings[name])
    _refuse_settings(settings)
    _resolve_reductions(args, settings["gradient_accumulation_kwargs"] or {})
    del settings["use_configured_state"]  # transformers drops this key, too
    args.accelerator_config = AcceleratorSettings(settings)
    args.split_batches = settings["split_batches"]
    shares = launch().world_size // args.context_parallel_size
    if args.split_batches and shares > 1 and (args.eval_strategy != "no" or args.eval_on_start):
        raise ValueError(
            "fastsft does not support --split_batches with evaluation on several ranks; leave it out, and "
            f"divide --per_device_train_batch_size {args.per_device_train_batch_size} by {shares}"
        )
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size"):
        if args.split_batches and getattr(args, name) % shares:
            whose = "groups of context ranks" if args.context_parallel_size > 1 else "ranks"
            raise ValueError(
                f"--split_batches: a batch of --{name} {getattr(args, name)} conversations cannot be split "
                f"over {shares} {whose}; use a multiple of {shares}"
            )


def _resolve_reductions(args: ArgumentFields, accumulation: dict[str, Any]) -> None:
    """Set `--sync_each_batch` from gradient_accumulation_kwargs.

    ValueError if the two contradict each other.
    """
    if accumulation.get("sync_each_batch") is None:
        return
    given = truth(accumulation["sync_each_batch"])
    if args.sync_each_batch not in (None, given):
        raise ValueError(
            "--sync_each_batch contradicts gradient_accumulation_kwargs of --accelerator_config; give one"
        )
    args.sync_each_batch = given


def _refuse_settings(settings: dict[str, Any]) -> None:
    advice_of = {
        "dispatch_batches": "leave it out: every rank maps the same rows",
        "use_configured_state": "leave it out: fastsft has no accelerate state",
    }
    for name, advice in advice_of.items():
        if truth(settings[name] or False):
            raise ValueError(f"fastsft does not support accelerator_config {name}; {advice}")
    if (settings["gradient_accumulation_kwargs"] or {}).get("num_steps") is not None:
        raise ValueError(
            "fastsft does not support num_steps in accelerator_config gradient_accumulation_kwargs; use "
            "--gradient_accumulation_steps"
        )
    if not settings["use_seedable_sampler"]:
        raise ValueError(
            "fastsft does not support accelerator_config use_seedable_sampler false: that order hangs on "
            "every draw of torch's global generator; leave it out, and choose the order with --data_seed"
        )
    if not settings["even_batches"] and launch().world_size > 1:
        raise ValueError(
            "fastsft does not support accelerator_config even_batches false on several ranks: ranks without "
            "a batch would leave the others waiting; leave it out, or use --dataloader_drop_last True"
        )
    if settings["non_blocking"]:
        warn_once("accelerator_config: non_blocking has no effect: uploads never block")
