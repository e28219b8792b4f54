"""Weights to rollout engines: sharded save, upload and broadcast for RL training. docs/weight_sync.md."""

from __future__ import annotations

import importlib
from typing import Any

# Loaded when asked for: importing fastsft.weight_sync imports neither torch nor Ray.
_HOMES = {
    "CheckpointCoordinator": "coordinator",
    "CheckpointMonitor": "monitor",
    "FastsftEngine": "fastsft_engine",
    "SaveTicket": "save",
    "SyncPlan": "plan",
    "Synchronizer": "synchronizer",
    "WeightGroup": "transport",
    "WeightReceiver": "receiver",
    "check_same_plan": "plan",
    "exclusive": "engine_state",
    "fsdp_save_state_dict": "save",
    "fsdp_sync_weight_nccl": "broadcast",
    "fsdp_upload_state_dict": "upload",
    "read_state_dict": "reading",
    "sync_plan": "broadcast",
}

__all__ = [
    "CheckpointCoordinator",
    "CheckpointMonitor",
    "FastsftEngine",
    "SaveTicket",
    "SyncPlan",
    "Synchronizer",
    "WeightGroup",
    "WeightReceiver",
    "check_same_plan",
    "exclusive",
    "fsdp_save_state_dict",
    "fsdp_sync_weight_nccl",
    "fsdp_upload_state_dict",
    "read_state_dict",
    "sync_plan",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"fastsft.weight_sync.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fastsft.weight_sync' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
