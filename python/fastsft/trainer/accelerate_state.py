"""Wishes to accelerate that a script made in this process: transformers' Trainer would follow them."""

from __future__ import annotations

import os
import sys

from fastsft.arguments import TrainingArguments
from fastsft.arguments.rules.precision import formats_asked_for

_PRECISION = "ACCELERATE_MIXED_PRECISION"
_ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


def check_accelerate_state(args: TrainingArguments, method: str) -> None:
    """ValueError where the environment or accelerate's state asks for another step than `args`.

    They outlive the arguments that set them: TrainingArguments(bf16=True) of transformers leaves its variable
    to later ones, and an Accelerator of the script its number format.
    """
    where, precision = _precision()
    asked = next((name for name in ("bf16", "fp16") if getattr(args, name)), "no")
    if precision not in ("no", asked):
        flag = precision if precision in ("bf16", "fp16") else "bf16"
        raise ValueError(
            f"{method}: {where} is {precision}, but args.{flag} is {getattr(args, flag)}: transformers' "
            f"Trainer would compute in {precision}; give {flag}=True for {flag}, or {_way_out(where, flag)}"
        )
    if precision == "no" and asked != "no" and where != _PRECISION and args._source is not None:
        raise ValueError(
            f"{method}: {where} is no, but args.{asked} is True: transformers' Trainer would compute in "
            f"float32; give {asked}=False, or make no Accelerator"
        )
    for earlier in sorted(formats_asked_for if precision == "no" and where == _PRECISION else ()):
        if asked == "no":
            raise ValueError(
                f"{method}: args.{earlier} is False, but earlier TrainingArguments of this process have "
                f"{earlier}=True: accelerate keeps that, and transformers' Trainer would compute in "
                f"{earlier}; give {earlier}=True, or train in another process"
            )
    steps = os.environ.get(_ACCUMULATION, "1")
    if steps not in ("1", "auto") and args.deepspeed_plan is None:
        raise ValueError(
            f"{method}: {_ACCUMULATION} is {steps}: transformers' Trainer would divide its gradients by it; "
            "unset it, and use gradient_accumulation_steps of the arguments"
        )


def _way_out(where: str, flag: str) -> str:
    """Words for a script that gets rid of a wish, which it may not know of."""
    if where == _PRECISION:
        return (
            f'run os.environ.pop("{_PRECISION}") first: an earlier TrainingArguments({flag}=True) of this '
            "process may have set it; a restart of the kernel removes it, too"
        )
    return (
        "make no Accelerator: one of the script, or of an earlier Trainer of transformers in this process, "
        "has set it; a restart of the kernel removes it"
    )


def _precision() -> tuple[str, str]:
    """Whose wish counts, and the number format: that of an Accelerator, else of the environment."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    shared = getattr(state, "_shared_state", None) or {}
    if "_mixed_precision" in shared:
        return "accelerate's AcceleratorState().mixed_precision", str(shared["_mixed_precision"])
    return _PRECISION, os.environ.get(_PRECISION, "no").lower()
