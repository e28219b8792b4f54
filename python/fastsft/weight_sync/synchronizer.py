"""A Synchronizer: holds the newest weights for those who generate. A plain object, or a Ray actor."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.plan import SyncPlan

if TYPE_CHECKING:
    import torch


class Synchronizer:
    """Takes weights from `fsdp_upload_state_dict` and hands them out, with the calls of Trinity's.

    As an actor: `ray.remote(Synchronizer).options(max_concurrency=8).remote()`, so that a reader may wait
    while a trainer uploads.
    """

    def __init__(self) -> None:
        self.model_version = 0
        self._state_dict: dict[str, torch.Tensor] | None = None
        self._plan: SyncPlan | None = None
        self._changed = threading.Condition()

    def set_model_state_dict(self, state_dict: dict[str, torch.Tensor], trainer_step: int) -> None:
        """A dict of tensors. ValueError when the step is not newer."""
        plan = SyncPlan([(name, tensor.dtype, tensor.shape) for name, tensor in state_dict.items()])
        self._store(plan, state_dict, trainer_step)

    def set_packed_model_state_dict(
        self, plan: str, bucket_bytes: int, buffers: Sequence[Any], trainer_step: int
    ) -> None:
        """The text of a plan, and the bytes of its tensors as uint8 arrays, which become views.

        ValueError when the arrays are not the plan's, or the step is not newer.
        """
        known = SyncPlan.from_json(plan)
        self._store(known, unpacked(known, bucket_bytes, buffers), trainer_step)

    def get_state_dict_meta(self) -> list[tuple[str, str, tuple[int, ...]]] | None:
        """(name, "torch.bfloat16", shape) in order; None before the first weights."""
        return None if self._plan is None else self._plan.metadata()

    def get_tied_names(self) -> dict[str, str]:
        """Names that were not sent, and the tensor that each is."""
        return {} if self._plan is None else self._plan.tied

    def get_model_state_dict(self) -> tuple[dict[str, torch.Tensor] | None, int]:
        """(weights, version)."""
        with self._changed:
            return self._state_dict, self.model_version

    def wait_new_model_state_dict(self, current_version: int, timeout: float | None = 600.0) -> int:
        """The version, once it is newer than `current_version`, or as it is after `timeout` seconds.

        None: as long as it takes."""
        with self._changed:
            self._changed.wait_for(lambda: self.model_version > current_version, timeout)
            return self.model_version

    def _store(self, plan: SyncPlan, state_dict: dict[str, torch.Tensor], step: int) -> None:
        with self._changed:
            if step <= self.model_version:
                raise ValueError(
                    f"version {step} is not newer than {self.model_version}, which this Synchronizer holds; "
                    "after a resume from an older step start a new Synchronizer"
                )
            self._plan, self._state_dict, self.model_version = plan, state_dict, step
            self._changed.notify_all()


def unpacked(plan: SyncPlan, bucket_bytes: int, buffers: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The tensors of a plan as views of `buffers`, cut as `SyncPlan.native.tensor_batches(bucket_bytes)`."""
    import torch

    batches = plan.buckets("tensor_batches", bucket_bytes)
    sizes = [batch.bytes for batch in batches]
    if [len(buffer) for buffer in buffers] != sizes:
        raise ValueError(f"packed weights: expected arrays of {sizes} bytes, got {[len(b) for b in buffers]}")
    state_dict = {name: plan.empty(i) for i, name in enumerate(plan.names) if plan.sizes[i] == 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays of Ray's store cannot be written: nobody does
        flat = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in buffers]
    for batch, data in zip(batches, flat, strict=True):
        for piece in batch.pieces:
            number = piece.tensor
            view = data[piece.offset : piece.offset + piece.bytes]
            state_dict[plan.names[number]] = _view(view, plan.dtypes[number], plan.shapes[number])
    return {name: state_dict[name] for name in plan.names}


def _view(data: torch.Tensor, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    aligned = data if data.storage_offset() % dtype.itemsize == 0 else data.clone()
    return aligned.view(dtype).view(shape)
