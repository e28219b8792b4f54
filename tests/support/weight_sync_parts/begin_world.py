"""What ranks do in tests of saves that one of them cannot begin, and of models that change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastsft.weight_sync import (
    CheckpointCoordinator,
    CheckpointMonitor,
    fsdp_save_state_dict,
    layout,
    read_state_dict,
    sync_plan,
)
from weight_sync_parts.agreement_world import heard
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.save_world import LOGGER

LIMIT_S = 60.0


class Refusing:
    """A foreign coordinator whose monitor is dead."""

    def save_async(self, *_: Any, **__: Any) -> None:
        raise ConnectionError("the actor is dead")


def save(engine: Any, path: str, step: int, coordinator: Any = None, **options: Any) -> str:
    """What the call or its coordinator raises."""

    def work() -> None:
        chosen = coordinator or CheckpointCoordinator()
        fsdp_save_state_dict(engine, path, step, chosen, LOGGER, **{"deadline_s": LIMIT_S, **options})
        chosen.wait_all(LIMIT_S)

    return heard(work)


def one_rank_cannot_begin(_: Any, kind: str, folder: str) -> list[str]:
    """Rank 1 has no directory, then another format, then another step; after each a save of all."""
    engine, second = make_engine(wrap(make_model(False), kind), kind), dist.get_rank() == 1
    blocked = Path(folder, "file")
    blocked.touch()
    said = [
        save(engine, str(blocked / "x") if second else f"{folder}/a", 1),
        save(engine, f"{folder}/b", 2),
        save(engine, f"{folder}/c", 3, format="zip" if second else "hf"),
        save(engine, f"{folder}/d", 4),
        save(engine, f"{folder}/e", 6 if second else 5),
        save(engine, f"{folder}/f", 7),
    ]
    return [each.replace(folder, "") for each in said]


def own_directories(_: Any, folder: str) -> tuple[list[str], int | None]:
    """Every rank writes to a place of its own: what is heard, and the step that the iteration file names."""
    job = Path(folder, str(dist.get_rank()))
    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    monitor = CheckpointMonitor(default_local_dir=str(job))
    said = []
    for step, save_format in enumerate(("verl_pt", "native", "hf"), 1):
        coordinator = CheckpointCoordinator(monitor if dist.get_rank() == 0 else None)
        said.append(
            save(engine, str(job / f"global_step_{step}" / "actor"), step, coordinator, format=save_format)
        )
        monitor.register_thread_count(step, state_dict_thread_count=1)
        monitor.monitor_step(step, True)
    return said, layout.read_iteration(job / layout.STATE_DICT_FILE) if dist.get_rank() == 0 else None


def refusing_coordinator(_: Any, folder: str) -> list[str]:
    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    first = Refusing() if dist.get_rank() == 0 else None
    return [
        save(engine, f"{folder}/a", 1, first).replace(folder, ""),
        save(engine, f"{folder}/b", 2),
    ]


def after_a_forward(_: Any, folder: str) -> dict[str, Any]:
    """FSDP2 keeps the root whole after a forward; the first plan and the first save are made then."""
    model = make_model(False)
    expected, names = state_of_model(model), [name for name, _ in model.named_parameters()]
    module = wrap(model, "fsdp2")
    with torch.no_grad():
        module(torch.arange(4)[None])
    planned = sync_plan(make_engine(module, "fsdp2", per_tensor=False)).names
    with torch.no_grad():
        module(torch.arange(4)[None])
    engine = make_engine(module, "fsdp2", per_tensor=False)
    said = save(engine, folder, 1, format="hf", save_dtype="bfloat16")
    wanted = {name: t.bfloat16() if name in names else t for name, t in expected.items()}
    read = read_state_dict(folder) if dist.get_rank() == 0 else wanted
    same = all(read[name].dtype == t.dtype and torch.equal(read[name], t) for name, t in wanted.items())
    dist.barrier()
    return {"missing": sorted(set(names) - set(planned)), "said": said, "same": same}
