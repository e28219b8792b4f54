"""Uploads whole weights to a Synchronizer, through memory."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import TYPE_CHECKING

import torch

from fastsft import _C
from fastsft.ranks.exchange import skip
from fastsft.weight_sync import remote
from fastsft.weight_sync.agreement import TransferAgreement, check_grows
from fastsft.weight_sync.engine import exclusive, state_source
from fastsft.weight_sync.interfaces import Engine, Logger, whole_number
from fastsft.weight_sync.plan import SyncPlan, parameter_dtype
from fastsft.weight_sync.tensor_stream import TensorStream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PACKED_CALL = "set_packed_model_state_dict"


def fsdp_upload_state_dict(
    engine: Engine,
    synchronizer: object,
    global_step: int,
    logger: Logger | None,
    *,
    save_dtype: str | None = None,
    bucket_bytes: int = 1 << 28,
    deadline_s: float = 600.0,
) -> None:
    """Send the whole weights of `engine.module` to `synchronizer`, as version `global_step`. Collective.

    Returns when the synchronizer has answered rank 0, and all ranks have made the call.
    synchronizer: a Ray actor handle or another object. If it has `set_packed_model_state_dict`, as fastsft's
    Synchronizer has, this method is called with a plan and byte arrays of at most `bucket_bytes` or one
    tensor each. Otherwise, `set_model_state_dict(dict of CPU tensors, step)` is called.
    global_step: 0 to send nothing.
    logger: None for this module's logger.
    save_dtype: dtype for sent parameters; None keeps each tensor's dtype.
    deadline_s: seconds that rank 0 waits for the answer, and that ranks first wait for each other. A method
    in this process that has not answered by then continues on its own thread.

    ValueError if the step is not above the last step, or if ranks have different steps or models, with the
    first difference. RuntimeError (or ValueError, if that was the failure) on every rank if any rank fails.
    Contract: docs/spec/weight_sync.md, sections 1.2 and 4.3.
    """
    if global_step == 0:
        skip("upload")
        return
    what = f"uploading step {global_step}"
    with (
        TransferAgreement(engine, "upload", what, deadline_s) as opening,
        exclusive(engine, deadline_s) as state,
    ):
        global_step = whole_number("global_step", global_step)
        bucket_bytes = whole_number("bucket_bytes", bucket_bytes)
        check_grows(what, global_step, state.uploaded)
        opening.agree({"step": global_step})
        source = state_source(engine, state)
        source.take_changes()
        source.refresh()
        plan = source.plan(parameter_dtype(save_dtype))
        opening.agree_on_plan(plan)
        stream, receiving = TensorStream(source, plan), _Receiving(synchronizer, global_step, deadline_s)

        def send() -> None:
            if source.rank == 0:
                _send(stream, plan, receiving, bucket_bytes)

        opening.carry_out(what, send, stream)
        state.uploaded = global_step
    (logger or getLogger(__name__)).info("[FSDP] weights uploaded to the Synchronizer: step=%s", global_step)


@dataclass(frozen=True)
class _Receiving:
    """The synchronizer to call, and the version to send."""

    synchronizer: object
    step: int
    deadline_s: float

    def call(self, name: str, *weights: object) -> None:
        remote.call(self.synchronizer, name, *weights, self.step, deadline_s=self.deadline_s)


def _send(stream: TensorStream, plan: SyncPlan, receiving: _Receiving, bucket_bytes: int) -> None:
    _check_capacity(receiving.synchronizer, plan.total_bytes)
    name = "set_model_state_dict"
    weights: tuple[object, ...]
    if hasattr(receiving.synchronizer, PACKED_CALL):
        name, weights = PACKED_CALL, (plan.to_json(), bucket_bytes, _packed(stream, plan, bucket_bytes))
    else:
        weights = (_whole(stream, plan),)
    stream.drain()  # finds tied tensors that differ, before any tensor is sent
    receiving.call(name, *weights)


def _whole(stream: TensorStream, plan: SyncPlan) -> dict[str, torch.Tensor]:
    state_dict = {}
    for number, name in enumerate(plan.names):
        (tensor,) = stream.take(number, number)
        state_dict[name] = tensor.to("cpu", plan.dtypes[number], copy=True).contiguous()
    return state_dict


def _packed(stream: TensorStream, plan: SyncPlan, bucket_bytes: int) -> list[npt.NDArray[np.uint8]]:

    buffers = []
    for bucket in plan.buckets("tensor_batches", bucket_bytes):
        tensors = stream.take(bucket.first, bucket.last)
        buffer = torch.empty(bucket.bytes, dtype=torch.uint8)
        _C.pack_bucket(plan.native, bucket, bucket.first, tensors, buffer)
        buffers.append(buffer.numpy())
    return buffers


def _check_capacity(synchronizer: object, needed: int) -> None:
    """Raise RuntimeError if Ray's object store is too small for the weights: Ray would spill or hang."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not remote.is_actor(synchronizer):
        return
    capacity = ray.cluster_resources().get("object_store_memory")
    if capacity is not None and capacity < needed:
        raise RuntimeError(
            f"the weights have {needed} bytes, Ray's object store {capacity:.0f}; start Ray with a larger "
            "object_store_memory, or upload with save_dtype='bfloat16'"
        )


class Synchronizer:
    """Receives weights from `fsdp_upload_state_dict` and returns them to readers, with Trinity's interface.

    Make it a Ray actor with `ray.remote(Synchronizer).options(max_concurrency=8).remote()`, so that readers
    can wait while a trainer uploads.
    """

    def __init__(self) -> None:
        self.model_version = 0
        self._state_dict: dict[str, torch.Tensor] | None = None
        self._plan: SyncPlan | None = None
        self._changed = threading.Condition()

    def set_model_state_dict(self, state_dict: dict[str, torch.Tensor], trainer_step: int) -> None:
        """Store a dict of tensors. ValueError unless `trainer_step` is above the stored version."""
        plan = SyncPlan([(name, tensor.dtype, tensor.shape) for name, tensor in state_dict.items()])
        self._store(plan, state_dict, trainer_step)

    def set_packed_model_state_dict(
        self, plan: str, bucket_bytes: int, buffers: Sequence[npt.NDArray[np.uint8]], trainer_step: int
    ) -> None:
        """Store packed tensors, as views into `buffers`.

        plan: text from SyncPlan.to_json. buffers: uint8 arrays with the tensors' bytes. ValueError if the
        arrays do not match the plan, or if `trainer_step` is not above the stored version.
        """
        known = SyncPlan.from_json(plan)
        self._store(known, unpacked(known, bucket_bytes, buffers), trainer_step)

    def get_state_dict_meta(self) -> list[tuple[str, str, tuple[int, ...]]] | None:
        """Return (name, dtype such as "torch.bfloat16", shape) in order; None before the first upload."""
        return None if self._plan is None else self._plan.metadata()

    def get_tied_names(self) -> dict[str, str]:
        """Return tied names that were not sent, each with the name of the sent tensor."""
        return {} if self._plan is None else self._plan.tied

    def get_model_state_dict(self) -> tuple[dict[str, torch.Tensor] | None, int]:
        """Return the weights, or None before the first upload, and their version."""
        with self._changed:
            return self._state_dict, self.model_version

    def wait_new_model_state_dict(self, current_version: int, timeout: float | None = 600.0) -> int:
        """Wait for a version newer than `current_version`, at most `timeout` seconds. Return the version.

        timeout: None for no limit.
        """
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


def unpacked(
    plan: SyncPlan, bucket_bytes: int, buffers: Sequence[npt.NDArray[np.uint8]]
) -> dict[str, torch.Tensor]:
    """Return a plan's tensors as views into `buffers`.

    buffers: packed by `plan.native.tensor_batches(bucket_bytes)`.
    """
    batches = plan.buckets("tensor_batches", bucket_bytes)
    sizes = [batch.bytes for batch in batches]
    if [len(buffer) for buffer in buffers] != sizes:
        raise ValueError(f"packed weights: expected arrays of {sizes} bytes, got {[len(b) for b in buffers]}")
    state_dict = {name: plan.empty(i) for i, name in enumerate(plan.names) if plan.sizes[i] == 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays in Ray's store are read-only
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
