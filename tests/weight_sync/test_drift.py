"""Many syncs: a process holds no more after the last than after the first."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastsft.weight_sync import (
    CheckpointCoordinator,
    Synchronizer,
    WeightReceiver,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    sync_plan,
)
from ranks import run_ranks
from weight_sync_parts.modules import make_engine, wrap
from weight_sync_parts.receivers import in_threads, make_groups
from weight_sync_parts.save_world import FORMATS, LOGGER

KB_PER_SYNC = 12.0  # a tensor is 256, a rank's part of it 128; what the test notes of a sync is 2


def check(folder: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    # torch notes the last 2000 collectives of a process; until it has so many that grows as well.
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    for rank in run_ranks(2, many, str(folder), last, seconds=1200.0):
        early, late = rank[first - 1], rank[-1]
        assert late.threads <= early.threads and late.files <= early.files
        grown_kb = 1024 * (late.allocated_mb - early.allocated_mb)
        assert grown_kb < KB_PER_SYNC * (last - first), (early, late)


def test_ten_syncs_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, 4, 10)


@pytest.mark.chaos
def test_a_hundred_syncs_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, 20, 100)


BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Held:
    """After a sync, when everything that malloc keeps for later has gone back. seconds: of the sync."""

    resident_mb: float
    allocated_mb: float
    threads: int
    files: int
    seconds: float


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


def _threads() -> int:
    """Wait 10 ms and count; a joined thread leaves /proc a moment after `join` returns."""
    time.sleep(0.01)
    return len(os.listdir("/proc/self/task"))


def held(seconds: float) -> Held:
    gc.collect()
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _Mallinfo
    info = libc.mallinfo2()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        (info.uordblks + info.hblkhd) / 2**20,
        min(_threads() for _ in range(10)),
        len(os.listdir("/proc/self/fd")),
        seconds,
    )


class Sync:
    """One of each of the three functions; receivers are threads of rank 0."""

    def __init__(self, folder: str) -> None:
        torch.manual_seed(0)
        blocks = [torch.nn.Linear(256, 256) for _ in range(16)]
        self._engine = make_engine(wrap(torch.nn.Sequential(*blocks), "fsdp2"), "fsdp2")
        plan = sync_plan(self._engine)
        self._coordinator, self._synchronizer = CheckpointCoordinator(), Synchronizer()
        self._folder = folder
        self._groups = make_groups(3) if dist.get_rank() == 0 else [None]
        self._receivers = [
            WeightReceiver(group, plan, lambda _: None, mode="native", bucket_bytes=BUCKET_BYTES)
            for group in self._groups[1:]
        ]

    def __call__(self, step: int) -> None:
        save_format = FORMATS[step % 3]
        path = str(Path(self._folder, save_format))
        fsdp_save_state_dict(
            self._engine, path, step, self._coordinator, LOGGER, format=save_format, deadline_s=60.0
        )
        self._coordinator.wait_all(60)
        fsdp_upload_state_dict(self._engine, self._synchronizer, step, LOGGER, bucket_bytes=BUCKET_BYTES)
        receiving = [receiver.receive for receiver in self._receivers]
        outcomes = in_threads([self._send, *receiving])
        assert outcomes == [step] * len(outcomes), outcomes

    def _send(self) -> int:
        return fsdp_sync_weight_nccl(
            self._engine, self._groups[0], mode="native", bucket_bytes=BUCKET_BYTES, deadline_s=60.0
        )


def many(_: Any, folder: str, times: int) -> list[Held]:
    """What this rank held after each of `times` syncs."""
    sync, found = Sync(folder), []
    for step in range(1, times + 1):
        began = time.perf_counter()
        sync(step)
        found.append(held(time.perf_counter() - began))
        dist.barrier()
    return found
