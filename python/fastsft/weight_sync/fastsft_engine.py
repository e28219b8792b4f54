"""FastsftEngine: fastsft's own trainer in the form that the three functions and veRL's workers expect."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.engine_state import exclusive

if TYPE_CHECKING:
    import torch


class FastsftEngine:
    """An adapter over a `fastsft.Trainer`, or over any object with `model` (built) and `tokenizer`.

    send_master: float32 masters go out instead of what the model computes in (the same in float32 runs).
    """

    _strategy = "fastsft"

    def __init__(self, trainer: Any, *, send_master: bool = False) -> None:
        if trainer.model.adapter_facts() is not None:
            raise ValueError(
                "FastsftEngine: weights of a model with adapters are not sent; save the adapter, or merge it "
                "(fastsft.lora.merge), and load that"
            )
        self.trainer, self.send_master = trainer, send_master
        self.checkpoint_manager = SimpleNamespace(processing_class=getattr(trainer, "tokenizer", None))

    @property
    def module(self) -> Any:
        """The `CausalLM`."""
        return self.trainer.model

    @property
    def native_engine(self) -> Any:
        """The core's engine. ValueError before the model is built."""
        engine = self.trainer.model.engine
        if engine is None:
            raise ValueError("the model has no engine yet; build it (Trainer does) before weights are sent")
        return engine

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of the weights that forward reads."""
        import torch

        from fastsft import _C

        return torch.bfloat16 if _C.narrow_compute(self.native_engine) else torch.float32

    def get_per_tensor_param(self) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        """(name, whole tensor) one unit at a time, on every rank; every rank must exhaust the iterator."""
        from fastsft.weight_sync.sources.native import EngineSource

        return (named for unit in EngineSource(self).whole() for named in unit), None

    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
        **_: Any,
    ) -> None:
        """A full checkpoint of the trainer in `local_path`; collective. The trainer's own limit prunes."""
        from fastsft.checkpoint.saver import save_checkpoint

        if hdfs_path is not None:
            raise ValueError(
                f"hdfs_path: expected None, got {hdfs_path}; copy the finished directory yourself"
            )
        with exclusive(self):
            save_checkpoint(self.trainer, local_path)

    def load_checkpoint(self, local_path: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Weights, optimizer and random states of `save_checkpoint`; collective."""
        from fastsft.checkpoint.checkpoint import load_checkpoint

        with exclusive(self):
            return load_checkpoint(self.trainer, local_path)
