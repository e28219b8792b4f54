"""The part of accelerate's Accelerator that training scripts use as `trainer.accelerator`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.arguments import TrainingArguments
from fastsft.arguments.for_transformers import DistributedState
from fastsft.arguments.resolve.device import requested_formats

if TYPE_CHECKING:
    import torch


class HasWeights(Protocol):
    """A model with a state dictionary."""

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Return the model's tensors by name."""


class StateDictType(Enum):
    """A copy of torch's enum with the only member that fastsft supports: weights are saved whole."""

    FULL_STATE_DICT = "FULL_STATE_DICT"


class FsdpPlugin:
    """Stand-in for accelerate's FSDP plugin. Scripts set its state_dict_type before a save."""

    state_dict_type = StateDictType.FULL_STATE_DICT

    def set_state_dict_type(self, state_dict_type: object = None) -> None:
        """Accept FULL_STATE_DICT, by name or as torch's enum member. ValueError for any other type."""
        name = getattr(state_dict_type, "name", state_dict_type)
        if name not in (None, StateDictType.FULL_STATE_DICT.name):
            raise ValueError(
                f"set_state_dict_type: expected FULL_STATE_DICT, got {name}: fastsft writes consolidated "
                "safetensors; leave it out"
            )


@dataclass(frozen=True)
class AcceleratorState:
    """Stand-in for accelerate's state, with its plugin attributes; deepspeed_plugin is always None."""

    fsdp_plugin: FsdpPlugin | None
    deepspeed_plugin: None = None


@dataclass(frozen=True)
class _Place(DistributedState):
    uses_fsdp: bool = False


class Accelerator(_Place):
    """Stand-in for accelerate's class: rank numbers, a barrier, and methods that scripts call to save.

    uses_fsdp: True if --fsdp asks for sharding. Setting an attribute raises ValueError.
    """

    def __setattr__(self, name: str, value: object) -> None:
        raise ValueError(
            f"Trainer.accelerator.{name} was set by the script, and nothing reads it here: the step is the "
            "engine's; leave it out, and give max_grad_norm and the optimizer's values as arguments"
        )

    @property
    def state(self) -> AcceleratorState:
        """Plugins of the run: an FSDP plugin if --fsdp is given."""
        return AcceleratorState(FsdpPlugin() if self.uses_fsdp else None)

    def unwrap_model(
        self, model: object, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """Return the script's own model object if it gave one, else `model`. fastsft wraps neither."""
        return getattr(model, "module", model)

    def get_state_dict(self, model: HasWeights, unwrap: bool = True) -> Mapping[str, torch.Tensor]:
        """Return `model.state_dict()`, complete on every rank. Collective for `trainer.model`."""
        return model.state_dict()

    def print(self, *words: object, **options: Any) -> None:
        """Print on global rank 0."""
        if self.is_main_process:
            print(*words, **options)

    def end_training(self) -> None:
        """Do nothing, since trackers are closed when `train` returns."""


_PRECISION = "ACCELERATE_MIXED_PRECISION"
_ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


def check_accelerate_state(args: TrainingArguments, method: str) -> None:
    """Raise ValueError if the environment or accelerate's shared state contradicts `args`.

    Both may hold old settings: TrainingArguments(bf16=True) of transformers sets an environment variable that
    later TrainingArguments inherit, and a script's Accelerator sets a shared mixed_precision.
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
    for earlier in sorted(requested_formats if precision == "no" and where == _PRECISION else ()):
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
    """Return advice on how to remove the setting `where`, of which the user may not be aware."""
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
    """Return the name and the value of the setting that decides about accelerate's mixed_precision.

    The setting of an existing Accelerator takes precedence over the environment variable.
    """
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    shared = getattr(state, "_shared_state", None) or {}
    if "_mixed_precision" in shared:
        return "accelerate's AcceleratorState().mixed_precision", str(shared["_mixed_precision"])
    return _PRECISION, os.environ.get(_PRECISION, "no").lower()
