"""Trainer ranks that are Ray actors, as Trinity's are, and talk to other actors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from fastsft.weight_sync import CheckpointCoordinator, fsdp_save_state_dict, fsdp_upload_state_dict
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.save_world import LOGGER

NAMESPACE = "weight-sync-test"


class TrainerRank:
    """One rank of a gloo world; meets the others through a file."""

    def run(self, rank: int, world_size: int, folder: str) -> dict[str, Any]:
        store = dist.FileStore(f"{folder}/store", world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        try:
            return trainer(folder)
        finally:
            dist.destroy_process_group()


def trainer(folder: str) -> dict[str, Any]:
    """Save through both monitors, upload to both synchronizers; only rank 0 meets the other actors."""
    first = dist.get_rank() == 0

    def actor(name: str) -> Any:
        return ray.get_actor(name, namespace=NAMESPACE) if first else None

    model = make_model(False)
    outcome: dict[str, Any] = {"expected": state_of_model(model)}
    engine = make_engine(wrap(model, "fsdp2"), "fsdp2")
    for step, kind in ((1, "checkpoint"), (2, "trinity")):
        coordinator = CheckpointCoordinator(actor(f"{kind}_monitor"))
        path = str(Path(folder, "trinity" if kind == "trinity" else "ours", "global_step_1", "actor"))
        fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER)
        if first:
            asyncio.run(coordinator.register_and_monitor(1, True, state_dict_thread_count=1))
        coordinator.wait_all()
        fsdp_upload_state_dict(engine, actor(f"{kind}_synchronizer"), 0, LOGGER)
        fsdp_upload_state_dict(engine, actor(f"{kind}_synchronizer"), step, LOGGER)
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
