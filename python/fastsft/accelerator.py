"""The part of accelerate's Accelerator that training scripts ask a Trainer for."""

from __future__ import annotations

from typing import Any

from fastsft import launcher
from fastsft.arguments import TrainingArguments


class Accelerator:
    """Place of this rank, and a barrier. Everything else of accelerate's class is not there."""

    def __init__(self, args: TrainingArguments) -> None:
        self.num_processes, self.process_index = args.world_size, args.process_index
        self.local_process_index = args.local_process_index

    @property
    def is_main_process(self) -> bool:
        """Whether this is global rank 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first rank of its machine."""
        return self.local_process_index == 0

    def wait_for_everyone(self) -> None:
        """Until all ranks are here; collective."""
        launcher.gather_objects(None)

    def unwrap_model(
        self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """`model`: nothing is wrapped around it. Of a model of transformers, the caller's object."""
        return getattr(model, "module", model)
