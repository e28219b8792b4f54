"""The device, and formats that fit each other."""

from __future__ import annotations

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import was_given
from fastsft.arguments.json_values import json_object
from fastsft.arguments.precision import check_formats
from fastsft.runtime.devices import choose_device
from fastsft.runtime.messages import warn_once

# Number formats of all arguments that this process made: accelerate would keep them for later ones.
formats_asked_for: set[str] = set()


def settle_precision(args: ArgumentFields) -> None:
    """The device, and formats that fit each other."""
    check_formats(args)
    steps = args.torch_empty_cache_steps
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise ValueError(f"--torch_empty_cache_steps: expected an integer above 0, got {steps}")
    if args.gradient_checkpointing_kwargs is not None:
        args.gradient_checkpointing_kwargs = json_object(
            "gradient_checkpointing_kwargs", args.gradient_checkpointing_kwargs
        )
    if args.no_cuda and not args.use_cpu and was_given(args, "use_cpu"):
        raise ValueError(
            "--no_cuda True is the old name of --use_cpu True, and --use_cpu is False; give one of the two"
        )
    args.use_cpu = args.use_cpu or args.no_cuda
    formats_asked_for.update(name for name in ("bf16", "fp16") if getattr(args, name))
    args._device = choose_device(args.use_cpu)
    if args._device == "cpu" and args.tf32:
        warn_once("--tf32 True has no effect on the CPU: products of fp32 matrices stay fp32")
