"""What ranks do in tests of saves and syncs in which one of them dies, is late, or has no room."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastsft.weight_sync import (
    CheckpointCoordinator,
    CheckpointMonitor,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    layout,
    sync_plan,
)
from fastsft.weight_sync.files import Written, temporary_name
from fastsft.weight_sync.formats import SaveFormat, save_format
from weight_sync_parts.modules import make_engine, wrap
from weight_sync_parts.receivers import sync
from weight_sync_parts.save_world import FORMATS, LOGGER

SIZE = 256  # 128 KiB a rank and layer


def big_engine() -> Any:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(SIZE, SIZE) for _ in range(4)]
    return make_engine(wrap(torch.nn.Sequential(*layers), "fsdp2"), "fsdp2")


def outcome_of(coordinator: CheckpointCoordinator) -> str:
    try:
        coordinator.wait_all(60)
    except RuntimeError as error:
        return str(error)
    return "saved"


class Killing:
    """A format in which rank 1 is killed when it has written `share` of its bytes."""

    def __init__(self, real: SaveFormat, share: float) -> None:
        self.name, self._real, self._share = real.name, real, share

    def write(self, directory: Path, tag: str, snapshot: Any) -> Written:
        files, ranges = self._real.write(directory, tag, snapshot)
        if dist.get_rank() == 1:
            if files:
                path = directory / temporary_name(files[0].name, tag)
                os.truncate(path, int(self._share * path.stat().st_size))
            os.kill(os.getpid(), signal.SIGKILL)
        return files, ranges


def killed_mid_save(_: Any, folder: str, name: str, share: float) -> str:
    """Rank 1 is gone while it writes. What rank 0 hears, which it also leaves in a file."""
    from fastsft.weight_sync import save

    job = Path(folder)
    monitor = CheckpointMonitor(default_local_dir=str(job)) if dist.get_rank() == 0 else None
    coordinator = CheckpointCoordinator(monitor)
    save.save_format = lambda given: Killing(save_format(given), share)
    path = job / "global_step_1" / "actor"
    patience = 1.0 if dist.get_rank() == 0 else 60.0  # rank 1 is to be killed, however late it is
    fsdp_save_state_dict(big_engine(), str(path), 1, coordinator, LOGGER, format=name, deadline_s=patience)
    if monitor is not None:
        monitor.register_thread_count(1, state_dict_thread_count=1)
        monitor.monitor_step(1, True)
    heard = outcome_of(coordinator)
    (job / "heard").write_text(heard)
    return heard


def whole_save(_: Any, folder: str, name: str) -> dict[str, torch.Tensor]:
    """The save after it, by new ranks: what it must hold."""
    engine, coordinator = big_engine(), CheckpointCoordinator()
    path = Path(folder, "global_step_1", "actor")
    fsdp_save_state_dict(engine, str(path), 1, coordinator, LOGGER, format=name, deadline_s=60.0)
    coordinator.wait_all(60)
    return {key: tensor.full_tensor().clone() for key, tensor in engine.module.state_dict().items()}


def full_disk(_: Any, folder: str) -> list[tuple[str, list[str], str]]:
    """Rank 1's files may not grow past 64 KiB: what each rank hears, what is left, and the save after it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    engine, coordinator, found = big_engine(), CheckpointCoordinator(), []
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in FORMATS:
        path = Path(folder, name)
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
        fsdp_save_state_dict(engine, str(path), 1, coordinator, LOGGER, format=name, deadline_s=30.0)
        heard = outcome_of(coordinator)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        dist.barrier()
        left = sorted(file.name for file in path.iterdir())
        dist.barrier()
        fsdp_save_state_dict(engine, str(path), 2, coordinator, LOGGER, format=name, deadline_s=30.0)
        again = outcome_of(coordinator)
        dist.barrier()
        found.append((heard, left, ", ".join(layout.problems(path, checksums=True)) or again))
        dist.barrier()
    return found


def delayed(_: Any, folder: str, seconds: float) -> dict[str, Any]:
    """Rank 1 is late, with a save and with a sync, and so is their end; with less patience: an error."""
    from fastsft.weight_sync.save_job import SaveJob

    engine, late = big_engine(), dist.get_rank() == 1
    monitor = CheckpointMonitor(default_local_dir=folder) if not late else None
    coordinator = CheckpointCoordinator(monitor)
    run = SaveJob.run

    def slow(self: SaveJob) -> None:
        time.sleep(seconds if late else 0)
        run(self)

    SaveJob.run = slow  # type: ignore[method-assign]
    found: dict[str, Any] = {}
    for step, deadline_s in ((1, seconds + 60), (2, seconds / 4)):
        path = Path(folder, f"global_step_{step}", "actor")
        fsdp_save_state_dict(engine, str(path), step, coordinator, LOGGER, deadline_s=deadline_s)
        found[f"early {step}"] = (path / layout.MANIFEST).exists()
        found[f"save {step}"] = outcome_of(coordinator)
        dist.barrier()
        found[f"late {step}"] = (path / layout.MANIFEST).exists()
    SaveJob.run = run  # type: ignore[method-assign]
    found["sync"] = _delayed_sync(engine, seconds if late else 0.0, seconds)
    return found


def _delayed_sync(engine: Any, sleep_s: float, seconds: float) -> Any:
    options: dict[str, Any] = {"mode": "native", "deadline_s": seconds + 60}
    plan = sync_plan(engine)
    time.sleep(sleep_s)
    if dist.get_rank() != 0:
        return fsdp_sync_weight_nccl(engine, None, **options)
    version, ends = sync(lambda group: fsdp_sync_weight_nccl(engine, group, **options), plan, **options)
    return [version, *[outcome for _, outcome, _ in ends]]
