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


def _groups(rank: int, world_size: int, node_size: int) -> dict[str, str]:
    groups = {"gather_group": dist.new_group().group_name, "reduce_group": dist.new_group().group_name}
    if not node_size:
        return groups
    node = [list(range(first, first + node_size)) for first in range(0, world_size, node_size)]
    across = [list(range(place, world_size, node_size)) for place in range(node_size)]
    for name, kind in (("node_gather_group", node), ("node_reduce_group", node), ("across_group", across)):
        for ranks in kind:
            group = dist.new_group(ranks)
            if rank in ranks:
                groups[name] = group.group_name
    return groups


def _run(
    rank: int,
    world_size: int,
    node_size: int,
    folder: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        result: Any = function(_groups(rank, world_size, node_size), *args)
    except Exception:
        result = RuntimeError(f"rank {rank}:\n{traceback.format_exc()}")
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(result))
    dist.destroy_process_group()


def run_ranks(world_size: int, function: Callable[..., Any], *args: Any, node_size: int = 0) -> list[Any]:
    """function(groups, *args) on every rank, `groups` being Engine's group names ("" alone).

    node_size: ranks of a node, with groups of their own; 0: all are one node.
    """
    if world_size == 1:
        return [function({"gather_group": "", "reduce_group": ""}, *args)]
    with tempfile.TemporaryDirectory() as folder:
        given = (world_size, node_size, folder, function, args)
        mp.start_processes(_run, given, nprocs=world_size, start_method="fork")
        results = [pickle.loads(Path(folder, f"{r}.pickle").read_bytes()) for r in range(world_size)]
    failures = [str(result) for result in results if isinstance(result, Exception)]
    if failures:
        raise RuntimeError("\n".join(failures))
    return results
