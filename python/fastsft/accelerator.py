"""The part of accelerate's Accelerator that training scripts ask a Trainer for."""

from __future__ import annotations

from typing import Any

from fastsft.arguments.place import DistributedState


class Accelerator(DistributedState):
    """Place of this rank, and a barrier. Everything else of accelerate's class is not there."""

    def unwrap_model(
        self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """`model`: nothing is wrapped around it. Of a model of transformers, the caller's object."""
        return getattr(model, "module", model)
