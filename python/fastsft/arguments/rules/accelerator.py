"""`--accelerator_config`: accelerate's settings of how batches are dealt.

Source: docs/spec/trainer_arguments.md, section 2, and docs/spec/trainer_semantics.md, section 4.
"""

from __future__ import annotations

from typing import Any

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.for_transformers import AcceleratorSettings
from fastsft.arguments.json_values import json_file_or_object, truth
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

# transformers' AcceleratorConfig.
DEFAULTS: dict[str, Any] = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
    "non_blocking": False,
    "gradient_accumulation_kwargs": None,
    "use_configured_state": False,
}


def settle_accelerator(args: ArgumentFields) -> None:
    """The settings as a dictionary with all keys; ValueError for what would deal other batches than asked."""
    given = json_file_or_object("accelerator_config", args.accelerator_config)
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"--accelerator_config: unknown keys {unknown}; known: {', '.join(DEFAULTS)}")
    settings = {**DEFAULTS, **given}
    if args.split_batches is not None:
        if "split_batches" in given and truth(given["split_batches"]) != args.split_batches:
            raise ValueError("--split_batches contradicts split_batches of --accelerator_config; give one")
        settings["split_batches"] = args.split_batches
    for name in ("split_batches", "even_batches", "use_seedable_sampler", "non_blocking"):
        settings[name] = truth(settings[name])
    _refuse(settings)
    _take_reductions(args, settings["gradient_accumulation_kwargs"] or {})
    del settings["use_configured_state"]  # as transformers does
    args.accelerator_config = AcceleratorSettings(settings)
    args.split_batches = settings["split_batches"]
    ranks = launch().world_size
    if args.split_batches and ranks > 1 and (args.eval_strategy != "no" or args.eval_on_start):
        raise ValueError(
            "fastsft does not support --split_batches with evaluation on several ranks; set "
            f"--per_device_train_batch_size to a {ranks}th instead"
        )
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size"):
        if args.split_batches and getattr(args, name) % ranks:
            raise ValueError(
                f"--split_batches: a batch of --{name} {getattr(args, name)} conversations cannot be split "
                f"over {ranks} ranks; use a multiple of {ranks}"
            )


def _take_reductions(args: ArgumentFields, accumulation: dict[str, Any]) -> None:
    """accelerate's own place for `--sync_each_batch`."""
    if accumulation.get("sync_each_batch") is None:
        return
    given = truth(accumulation["sync_each_batch"])
    if args.sync_each_batch not in (None, given):
        raise ValueError(
            "--sync_each_batch contradicts gradient_accumulation_kwargs of --accelerator_config; give one"
        )
    args.sync_each_batch = given


def _refuse(settings: dict[str, Any]) -> None:
    refused = {
        "dispatch_batches": "leave it out: every rank maps the same rows",
        "use_configured_state": "leave it out: fastsft has no accelerate state",
    }
    for name, advice in refused.items():
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
