"""FastChat's `trainer_save_model_safe`, for fastsft's and transformers' trainers."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import TYPE_CHECKING, Protocol

from fastsft.script_names.module_names import remember_own

if TYPE_CHECKING:
    from torch import nn

    from fastsft.checkpoint.external.save import ForeignTrainer


class OwnTrainer(Protocol):
    """A fastsft Trainer, whose `save_model` streams its shards."""

    @property
    def engine(self) -> object: ...
    def save_model(self) -> None: ...


def trainer_save_model_safe(trainer: ForeignTrainer | OwnTrainer) -> None:
    """Save a trainer's final model into the trainer's output directory. Collective.

    trainer: a fastsft Trainer, or any object with `args.output_dir` and `model`. The model is a transformers
    model, wrapped in FSDP1, FSDP2 or DDP, or not wrapped. The save is streamed: rank 0 gathers one unit at
    a time on its CPU and writes it (docs/checkpoint.md). If a model cannot be streamed (adapters, quantized
    models, a trainer that overrides `save_model`, ...), the trainer's own `save_model()` saves it, as in
    FastChat. Rank 0 then needs memory for the whole model, and a warning has the reason.
    """
    if hasattr(trainer, "engine"):
        trainer.save_model()
        return
    reason = _reason_not_to_stream(trainer)
    if reason is None:
        from fastsft.checkpoint.external.save import save_foreign_model
        from fastsft.checkpoint.external.units import NotStreamable

        try:
            save_foreign_model(trainer)
            return
        except NotStreamable as error:
            reason = str(error)
    if reason:
        warnings.warn(f"the trainer saves its model in its own way: {reason}", stacklevel=2)
    with _full_state_dict(trainer.model):
        trainer.save_model()


remember_own(trainer_save_model_safe=trainer_save_model_safe)


def _reason_not_to_stream(trainer: ForeignTrainer) -> str | None:
    """Return the reason why the model cannot be streamed; None if it can.

    The reason is "", without a warning, for objects that are not from transformers.
    """
    from fastsft.checkpoint.external.save import is_pretrained
    from fastsft.checkpoint.external.wrapped import unwrapped

    args, model = getattr(trainer, "args", None), unwrapped(trainer.model)
    base = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    is_trainer = base is not None and isinstance(trainer, base)
    if getattr(args, "output_dir", None) is None or not (is_pretrained(model) or is_trainer):
        return ""
    overridden = is_trainer and [
        name for name in ("save_model", "_save") if getattr(type(trainer), name) is not getattr(base, name)
    ]
    if overridden:
        return f"{type(trainer).__name__} overrides {', '.join(overridden)}"
    return _special_model(trainer, model) or _special_arguments(args)


def _special_model(trainer: ForeignTrainer, model: nn.Module) -> str | None:
    peft = sys.modules.get("peft")
    if getattr(model, "_hf_peft_config_loaded", False) or (peft and isinstance(model, peft.PeftModel)):
        return "only the adapter of a PEFT model is saved"
    if getattr(model, "hf_quantizer", None) is not None:
        return "the model is quantized"
    if (getattr(model, "_tp_size", None) or 1) > 1:
        return "the model is tensor-parallel"
    if getattr(trainer, "is_deepspeed_enabled", False):
        return "DeepSpeed holds the model"
    device_map = getattr(model, "hf_device_map", None)
    if device_map and "disk" in device_map.values():
        return "parts of the model are offloaded to disk"
    return None


def _special_arguments(args: object) -> str | None:
    if getattr(args, "save_safetensors", True) is False:
        return "--save_safetensors False asks for pickled weights"
    if getattr(args, "push_to_hub", False):
        return "--push_to_hub saves once more by itself"
    if getattr(args, "save_on_each_node", False):
        return "--save_on_each_node needs the whole model on every node"
    return None


def _full_state_dict(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    from fastsft.checkpoint.external.wrapped import is_fsdp1

    if not is_fsdp1(model):
        return contextlib.nullcontext()
    from torch.distributed.fsdp import FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy)
