"""FastChat's `trainer_save_model_safe`, for our trainers and for Hugging Face's."""

from __future__ import annotations

import sys
from typing import Any


def trainer_save_model_safe(trainer: Any) -> None:
    """Save the final model of a trainer into its output directory; collective.

    A fastsft trainer streams its shards. Any other object needs `model`, `args.output_dir` and
    `save_model()`; when PyTorch's FSDP wraps its model, the full state dict is gathered on the CPU of rank 0,
    as FastChat does.
    """
    if hasattr(trainer, "engine") or not _is_wrapped(trainer.model):
        trainer.save_model()
        return
    from torch.distributed.fsdp import FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(trainer.model, StateDictType.FULL_STATE_DICT, policy):
        trainer.save_model()


def _is_wrapped(model: Any) -> bool:
    # A model cannot be wrapped by what nobody imported, and the import is slow.
    module = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(module, "FullyShardedDataParallel", None)
    modules = getattr(model, "modules", None)
    return wrapper is not None and callable(modules) and any(isinstance(part, wrapper) for part in modules())
