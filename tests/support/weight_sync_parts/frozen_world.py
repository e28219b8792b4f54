"""Ranks whose rank 0, which serves the store, is frozen by SIGSTOP in the middle of an exchange."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastsft.ranks import exchange
from fastsft.ranks import store as rank_store
from fastsft.weight_sync import (
    CheckpointCoordinator,
    Synchronizer,
    SyncPlan,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    sync_plan,
)
from weight_sync_parts.agreement_world import heard
from weight_sync_parts.modules import make_engine
from weight_sync_parts.receivers import sync
from weight_sync_parts.save_world import LOGGER

LIMIT_S = 60.0


def meet(port: int) -> int:
    """The ranks of a file store meet again over a store that rank 0 serves; this rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = rank_store.loopback_store(rank, world_size, timedelta(seconds=60), port)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    return rank


def call(function: str, folder: str, deadline_s: float) -> None:
    """One of the functions, to its end."""
    engine = make_engine(torch.nn.Linear(4, 4), "plain")
    if function == "save":
        coordinator = CheckpointCoordinator()
        fsdp_save_state_dict(engine, f"{folder}/save", 1, coordinator, LOGGER, deadline_s=deadline_s)
        coordinator.wait_all(LIMIT_S)
    elif function == "upload":
        fsdp_upload_state_dict(engine, Synchronizer(), 1, LOGGER, deadline_s=deadline_s)
    elif function == "broadcast" and dist.get_rank() == 0:
        plan = SyncPlan((name, each.dtype, each.shape) for name, each in engine.module.named_parameters())
        outcome, _ = sync(
            lambda group: fsdp_sync_weight_nccl(engine, group, deadline_s=deadline_s),
            plan, count=1, deadline_s=deadline_s,
        )  # fmt: skip
        if isinstance(outcome, Exception):
            raise outcome
    elif function == "broadcast":
        fsdp_sync_weight_nccl(engine, None, deadline_s=deadline_s)
    else:
        sync_plan(engine, deadline_s=deadline_s)


def freeze() -> None:
    """The whole process, before this thread does anything else."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


@contextlib.contextmanager
def freezing(kind: str, others: list[Path]) -> Iterator[None]:
    """Inside, this process stops once, before it posts `kind`, for which `others` wait by then; "call": at
    once."""
    if kind == "call":
        freeze()
    real = exchange.StoreExchange.post

    def stopping(self: Any, posted: str, **content: Any) -> None:
        if posted == kind and "failed" not in content:
            for other in others:
                wait_for_file(other)
            freeze()
        real(self, posted, **content)

    exchange.StoreExchange.post = stopping  # type: ignore[method-assign]
    try:
        yield
    finally:
        exchange.StoreExchange.post = real  # type: ignore[method-assign]


@contextlib.contextmanager
def telling(kind: str, path: Path) -> Iterator[None]:
    """Inside, a file tells that this process has begun to wait for `kind`."""
    names = ("collect", "collect_all", "collect_patiently")
    reals = {name: getattr(exchange.StoreExchange, name) for name in names}

    def collecting(name: str, self: Any, collected: str, *ranks: Any) -> Any:
        if collected == kind:
            path.touch()
        return reals[name](self, collected, *ranks)

    for name in names:
        setattr(exchange.StoreExchange, name, functools.partialmethod(functools.partial(collecting, name)))
    try:
        yield
    finally:
        for name, real in reals.items():
            setattr(exchange.StoreExchange, name, real)


def wait_for_file(path: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.01)


def frozen(
    _: Any, folder: str, port: int, cases: list[tuple[str, str]], deadline_s: float
) -> list[tuple[str, str]]:
    """What a rank hears of each call in which rank 0 is stopped until all others have been heard, and of the
    same call after that."""
    rank, found = meet(port), []
    pids: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    for function, kind in cases:
        own = Path(folder, f"{function}-{kind}")
        own.mkdir(exist_ok=True)
        dist.barrier()
        files = {
            name: [own / f"{name}-{other}" for other in range(1, len(pids))] for name in ("waiting", "said")
        }
        with freezing(kind, files["waiting"]) if rank == 0 else telling(kind, own / f"waiting-{rank}"):
            said = heard(lambda: call(function, str(own), deadline_s))  # noqa: B023
        (own / f"said-{rank}").touch()
        if rank == 1:
            for file in files["said"]:
                wait_for_file(file)
            os.kill(pids[0], signal.SIGCONT)
        dist.barrier()
        found.append((said, heard(lambda: call(function, str(own), LIMIT_S))))  # noqa: B023
        dist.barrier()
    return found
