"""What ranks do in tests of what they must agree on before, and of the posts by which they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fastsft.ranks.store import own_store
from fastsft.weight_sync import (
    CheckpointCoordinator,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    sync_plan,
)
from weight_sync_parts.modules import make_engine, make_model, wrap
from weight_sync_parts.receivers import sync
from weight_sync_parts.save_world import LOGGER

LIMIT_S = 60.0


def heard(work: Callable[[], Any]) -> str:
    """What a call raises, with its type."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def keys_left(_: Any, folder: str, times: int) -> list[int]:
    """How many keys the ranks' store holds after each of `times` saves, uploads and broadcasts."""
    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    coordinator, found = CheckpointCoordinator(), []
    plan = sync_plan(engine)
    for step in range(1, times + 1):
        path = str(Path(folder, str(step)))
        fsdp_save_state_dict(engine, path, step, coordinator, LOGGER, deadline_s=LIMIT_S)
        coordinator.wait_all(LIMIT_S)
        failing = "int8" if dist.get_rank() == 1 else None  # a failed exchange leaves nothing either
        heard(lambda: fsdp_upload_state_dict(engine, Synchronizer(), step, LOGGER, save_dtype=failing))  # noqa: B023
        fsdp_upload_state_dict(engine, Synchronizer(), step, LOGGER, deadline_s=LIMIT_S)
        if dist.get_rank() == 0:
            sync(
                lambda group: fsdp_sync_weight_nccl(engine, group, deadline_s=LIMIT_S),
                plan,
                deadline_s=LIMIT_S,
            )
        else:
            fsdp_sync_weight_nccl(engine, None, deadline_s=LIMIT_S)
        dist.barrier()
        found.append(own_store().num_keys())
        dist.barrier()
    return found


def other_models(_: Any, folder: str) -> dict[str, str]:
    """Rank 2 has another model: what each rank hears from each of the functions."""
    model = make_model(False, rows=11 + (dist.get_rank() == 2))
    engine, coordinator = make_engine(model, "plain"), CheckpointCoordinator()

    def save() -> None:
        fsdp_save_state_dict(engine, f"{folder}/save", 1, coordinator, LOGGER, deadline_s=LIMIT_S)
        coordinator.wait_all(LIMIT_S)

    return {
        "save": heard(save),
        "upload": heard(
            lambda: fsdp_upload_state_dict(engine, Synchronizer(), 1, LOGGER, deadline_s=LIMIT_S)
        ),
        "broadcast": heard(lambda: fsdp_sync_weight_nccl(engine, None, deadline_s=LIMIT_S)),
        "plan": heard(lambda: sync_plan(engine, deadline_s=LIMIT_S)),
    }


def other_steps(_: Any, folder: str) -> dict[str, str]:
    """Rank 1 is a step ahead, then fails alone before it begins; the calls after that succeed."""
    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    coordinator, ahead = CheckpointCoordinator(), int(dist.get_rank() == 1)

    def save(step: int, **options: Any) -> None:
        path = f"{folder}/save"
        fsdp_save_state_dict(engine, path, step, coordinator, LOGGER, deadline_s=LIMIT_S, **options)
        coordinator.wait_all(LIMIT_S)

    def upload(step: int, deadline_s: float = LIMIT_S, **options: Any) -> None:
        fsdp_upload_state_dict(engine, synchronizer, step, LOGGER, deadline_s=deadline_s, **options)

    synchronizer = Synchronizer()
    failing: dict[str, Any] = {"save_dtype": "int8"} if ahead else {}
    found = {
        "save": heard(lambda: save(1 + ahead)),
        "save format": heard(lambda: save(1, format="hf" if ahead else "native")),
        "save failing": heard(lambda: save(1, **failing)),
        "save after": heard(lambda: save(1)),
        "upload": heard(lambda: upload(1 + ahead)),
        "upload failing": heard(lambda: upload(1, **failing)),
        "upload alone": heard(lambda: upload(1 - ahead, deadline_s=1.0)),
        "upload after": heard(lambda: upload(1)),
    }
    version = 5 + ahead
    found["broadcast"] = heard(
        lambda: fsdp_sync_weight_nccl(engine, None, version=version, deadline_s=LIMIT_S)
    )
    return found
