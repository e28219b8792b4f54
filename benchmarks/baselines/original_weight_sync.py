"""The original functions, written from their contract (docs/weight_sync.md names them): the side to beat."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Threads:
    """The coordinator's part of a save: one thread a name, joined before the next."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def save_async(self, name: str, save_fn: Any, global_step: int, is_state_dict: bool = False) -> None:
        self.wait_all()
        self._thread = threading.Thread(target=save_fn)
        self._thread.start()

    def wait_all(self) -> None:
        if self._thread is not None:
            self._thread.join()


def save_state_dict(module: Any, folder: str, step: int, coordinator: Threads) -> None:
    """FSDP2's sharded state dict: rank 0 writes it on a thread, the others here; nothing is synced."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    state = module.state_dict()
    path = f"{folder}/model_world_size_{world_size}_rank_{rank}.pt"
    if rank == 0:
        coordinator.save_async("model_state_dict", lambda: torch.save(state, path), step, is_state_dict=True)
    else:
        torch.save(state, path)


def sync_weight(module: Any, group: Any) -> None:
    """One full tensor after another, each broadcast before the next is gathered."""
    for _, parameter in module.state_dict().items():
        full = parameter.full_tensor().detach() if hasattr(parameter, "full_tensor") else parameter
        if dist.get_rank() == 0:
            group.broadcast([full.contiguous()], dist.BroadcastOptions()).wait()
