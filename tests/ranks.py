"""Runs a function on several gloo ranks and brings back what each returned."""

from __future__ import annotations

import datetime
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _run(
    rank: int, world_size: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    groups = {"gather_group": dist.new_group().group_name, "reduce_group": dist.new_group().group_name}
    try:
        result: Any = function(groups, *args)
    except Exception:
        result = RuntimeError(f"rank {rank}:\n{traceback.format_exc()}")
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(result))
    dist.destroy_process_group()


def run_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """function(groups, *args) on every rank, `groups` being Engine's two group names ("" alone)."""
    if world_size == 1:
        return [function({"gather_group": "", "reduce_group": ""}, *args)]
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_run, (world_size, folder, function, args), nprocs=world_size, start_method="fork")
        results = [pickle.loads(Path(folder, f"{r}.pickle").read_bytes()) for r in range(world_size)]
    failures = [str(result) for result in results if isinstance(result, Exception)]
    if failures:
        raise RuntimeError("\n".join(failures))
    return results
