"""Sharded save, upload and broadcast of weights to rollout engines, for RL training (docs/weight_sync.md)."""

from fastsft.runtime.imports import lazy_names

# Modules are imported at first use, so that `import fastsft.weight_sync` imports neither torch nor Ray.
_HOMES = {
    "CheckpointCoordinator": "coordinator",
    "CheckpointMonitor": "monitor",
    "FastsftEngine": "engine",
    "SaveTicket": "save",
    "SyncPlan": "plan",
    "Synchronizer": "upload",
    "WeightGroup": "groups",
    "WeightReceiver": "broadcast",
    "check_same_plan": "plan",
    "exclusive": "engine",
    "fsdp_save_state_dict": "save",
    "fsdp_sync_weight_nccl": "broadcast",
    "fsdp_upload_state_dict": "upload",
    "read_state_dict": "formats",
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


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
