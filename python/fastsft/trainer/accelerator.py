"""The part of accelerate's Accelerator that training scripts ask a Trainer for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.arguments.distributed_state import DistributedState

if TYPE_CHECKING:
    import torch


class HasWeights(Protocol):
    """A model."""

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Its tensors by name."""


class StateDictType(Enum):
    """torch's name of the one way in which weights are saved."""

    FULL_STATE_DICT = "FULL_STATE_DICT"


class FsdpPlugin:
    """Settings for a save: a model is always written whole. Other settings have no effect."""

    state_dict_type = StateDictType.FULL_STATE_DICT

    def set_state_dict_type(self, state_dict_type: object = None) -> None:
        """FULL_STATE_DICT, by name or as torch's member. ValueError for another one."""
        name = getattr(state_dict_type, "name", state_dict_type)
        if name not in (None, StateDictType.FULL_STATE_DICT.name):
            raise ValueError(
                f"set_state_dict_type: expected FULL_STATE_DICT, got {name}: fastsft writes consolidated "
                "safetensors; leave it out"
            )


@dataclass(frozen=True)
class AcceleratorState:
    """The plugins that there are; deepspeed_plugin is always None."""

    fsdp_plugin: FsdpPlugin | None
    deepspeed_plugin: None = None


@dataclass(frozen=True)
class _Place(DistributedState):
    uses_fsdp: bool = False


class Accelerator(_Place):
    """Place of this rank, a barrier, and what scripts do around a save. Nothing else of accelerate's class.

    uses_fsdp: whether --fsdp asks for sharding. ValueError for attributes that are set.
    """

    def __setattr__(self, name: str, value: object) -> None:
        raise ValueError(
            f"Trainer.accelerator.{name} was set by the script, and nothing reads it here: the step is the "
            "engine's; leave it out, and give max_grad_norm and the optimizer's values as arguments"
        )

    @property
    def state(self) -> AcceleratorState:
        """With an FSDP plugin where --fsdp is given."""
        return AcceleratorState(FsdpPlugin() if self.uses_fsdp else None)

    def unwrap_model(
        self, model: object, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """`model`: nothing is wrapped around it. Of a model of transformers, the caller's object."""
        return getattr(model, "module", model)

    def get_state_dict(self, model: HasWeights, unwrap: bool = True) -> Mapping[str, torch.Tensor]:
        """`model.state_dict()`: whole on every rank; collective for `trainer.model`."""
        return model.state_dict()

    def print(self, *words: object, **options: Any) -> None:
        """Print on global rank 0."""
        if self.is_main_process:
            print(*words, **options)

    def end_training(self) -> None:
        """Nothing: trackers are closed when `train` returns."""
