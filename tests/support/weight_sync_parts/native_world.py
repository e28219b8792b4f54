"""The three functions on fastsft's own engine, on several ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastsft import _C
from fastsft.weight_sync import (
    CheckpointCoordinator,
    FastsftEngine,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    sync_plan,
)
from tiny_models import make_engine, train
from weight_sync_parts.modules import Tokens
from weight_sync_parts.receivers import sync
from weight_sync_parts.save_world import FORMATS, LOGGER


def everything(
    groups: dict[str, str], model: str, folder: str, strategy: str, compute: str
) -> dict[str, Any]:
    """Two steps of training, then save, upload and broadcast, each beside a further step where it may be."""
    native = make_engine(
        Path(model), strategy=strategy, compute_dtype=compute,
        gather_group=groups["gather_group"], reduce_group=groups["reduce_group"],
    )  # fmt: skip
    engine = FastsftEngine(SimpleNamespace(model=SimpleNamespace(engine=native), tokenizer=Tokens()))
    coordinator, synchronizer, saved = CheckpointCoordinator(), Synchronizer(), {}
    train(native, 2)
    for name in FORMATS:
        saved[name] = native.named_parameters()
        fsdp_save_state_dict(engine, str(Path(folder, name)), 2, coordinator, LOGGER, format=name)
        train(native, 1)
    coordinator.wait_all()
    masters = native.named_parameters()
    fsdp_upload_state_dict(engine, synchronizer, 3, LOGGER, bucket_bytes=1 << 14)
    plan = sync_plan(engine)
    loaded: Any = None
    if native.rank == 0:
        version, ends = sync(
            lambda group: fsdp_sync_weight_nccl(engine, group, mode="native", bucket_bytes=1 << 12),
            plan, mode="native", bucket_bytes=1 << 12, deadline_s=60.0,
        )  # fmt: skip
        loaded = (version, [dict(end.tensors) for _, _, end in ends])
    else:
        fsdp_sync_weight_nccl(engine, None, mode="native", bucket_bytes=1 << 12)
    named, extra = engine.get_per_tensor_param()
    return {
        "saved": saved, "masters": masters, "uploaded": synchronizer.get_model_state_dict(), "loaded": loaded,
        "per tensor": {name: tensor.clone() for name, tensor in named}, "extra": extra,
        "narrow": _C.compute_dtype(native) != "float32",
    }  # fmt: skip
