"""Trainer ranks that are Ray actors, as Trinity's are, and talk to other actors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from fastsft.weight_sync import (
    CheckpointCoordinator,
    SyncPlan,
    WeightGroup,
    WeightReceiver,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    sync_plan,
)
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.receivers import Loaded
from weight_sync_parts.save_world import LOGGER

NAMESPACE = "weight-sync-test"
LIMIT_S = 100.0


class TrainerRank:
    """One rank of a gloo world; meets the others through a file."""

    def run(self, rank: int, world_size: int, folder: str, kind: str, namespace: str) -> dict[str, Any]:
        store = dist.FileStore(f"{folder}/store", world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        try:
            return trainer(folder, kind, namespace)
        finally:
            dist.destroy_process_group()


class Rollout:
    """Takes part in broadcasts."""

    def receive(self, folder: str, plan: str) -> dict[str, Any]:
        group = WeightGroup(dist.FileStore(f"{folder}/weights", 2), 1, 2, timeout_s=LIMIT_S)
        loaded = Loaded()
        options: dict[str, Any] = {"mode": "native", "deadline_s": LIMIT_S}
        WeightReceiver(group, SyncPlan.from_json(plan), loaded, **options).receive()
        return dict(loaded.tensors)


def broadcast(engine: Any, folder: str, rollout: Any) -> Any:
    """What the actor has received, on rank 0."""
    plan = sync_plan(engine, send_buffers=True)
    options: dict[str, Any] = {"mode": "native", "send_buffers": True, "deadline_s": LIMIT_S}
    if rollout is None:
        fsdp_sync_weight_nccl(engine, None, **options)
        return None
    receiving = rollout.receive.remote(folder, plan.to_json())
    group = WeightGroup(dist.FileStore(f"{folder}/weights", 2), 0, 2, timeout_s=LIMIT_S)
    fsdp_sync_weight_nccl(engine, group, **options)
    return ray.get(receiving, timeout=LIMIT_S)


def trainer(folder: str, kind: str, namespace: str) -> dict[str, Any]:
    """Save through both monitors, upload to both synchronizers, broadcast; only rank 0 meets other actors."""
    first = dist.get_rank() == 0

    def actor(name: str) -> Any:
        return ray.get_actor(name, namespace=namespace) if first else None

    model = make_model(False)
    outcome: dict[str, Any] = {"expected": state_of_model(model)}
    engine = make_engine(wrap(model, kind), kind)
    for step, other in ((1, "checkpoint"), (2, "trinity")):
        coordinator = CheckpointCoordinator(actor(f"{other}_monitor"))
        path = str(Path(folder, "trinity" if other == "trinity" else "ours", "global_step_1", "actor"))
        fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER)
        if first:
            asyncio.run(coordinator.register_and_monitor(1, True, state_dict_thread_count=1))
        coordinator.wait_all()
        fsdp_upload_state_dict(engine, actor(f"{other}_synchronizer"), 0, LOGGER)
        fsdp_upload_state_dict(engine, actor(f"{other}_synchronizer"), step, LOGGER)
    outcome["received"] = broadcast(engine, folder, actor("rollout"))
    try:
        fsdp_upload_state_dict(engine, actor("trinity_synchronizer"), 3, LOGGER)
    except (RuntimeError, ValueError) as error:
        outcome["error"] = str(error)
    return outcome


class TrinitySynchronizer:
    """Takes real dicts, two steps' worth."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def set_model_state_dict(self, state_dict: Any, trainer_step: int) -> None:
        if trainer_step > 2:
            raise ValueError("no room")
        self.calls.append((state_dict, trainer_step))

    async def get_calls(self) -> list[Any]:
        return self.calls
