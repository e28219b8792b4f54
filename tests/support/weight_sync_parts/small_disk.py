"""Two ranks that save into FOLDER, too small for a second save, and what they heard: FOLDER FORMAT ..."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fastsft.weight_sync import CheckpointCoordinator, CheckpointMonitor, fsdp_save_state_dict, layout
from ranks import run_ranks
from weight_sync_parts.fault_world import big_engine, outcome_of
from weight_sync_parts.save_world import LOGGER


def full_file_system(_: Any, folder: str, formats: list[str]) -> list[dict[str, Any]]:
    """By format: a save that fits, one that does not beside it, and one after room has been made."""
    found = []
    for name in formats:
        job = Path(folder, name)
        first = dist.get_rank() == 0
        coordinator = CheckpointCoordinator(CheckpointMonitor(default_local_dir=str(job)) if first else None)
        ballast = Path(folder, "ballast")
        engine = big_engine()

        def save(step: int) -> str:
            path = job / f"global_step_{step}" / "actor"  # noqa: B023
            options: dict[str, Any] = {"format": name, "deadline_s": 30.0}  # noqa: B023
            fsdp_save_state_dict(engine, str(path), step, coordinator, LOGGER, **options)  # noqa: B023
            heard = outcome_of(coordinator)  # noqa: B023
            dist.barrier()
            return heard

        outcome: dict[str, Any] = {"format": name, "fits": save(1)}
        if first:
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            ballast.write_bytes(b"x" * (free - (200 << 10)))  # of the 1 MiB that a save takes
        dist.barrier()
        outcome["full"] = save(2)
        left = sorted(p.name for p in Path(job, "global_step_2").rglob("*") if p.is_file())
        outcome["left"] = left
        outcome["again"] = save(1)  # over the complete one, which must survive
        outcome["before"] = layout.problems(job / "global_step_1" / "actor", checksums=True)
        dist.barrier()
        if first:
            ballast.unlink()
        dist.barrier()
        outcome["room"] = save(2)
        outcome["after"] = layout.problems(job / "global_step_2" / "actor", checksums=True)
        dist.barrier()
        if first:
            for path in [*job.rglob("*.pt"), *job.rglob("*.safetensors")]:
                path.unlink()
        dist.barrier()
        found.append(outcome)
    return found


def main() -> None:
    # Through a module of that name: where ranks run it is imported once more.
    from weight_sync_parts import small_disk

    folder, *formats = sys.argv[1:]
    print(json.dumps(run_ranks(2, small_disk.full_file_system, folder, formats, seconds=100.0)))


if __name__ == "__main__":
    main()
