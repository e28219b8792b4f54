"""replace_pending: a save that has not begun makes room for a newer one, on all ranks or on none."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastsft.ranks.store import own_store
from fastsft.weight_sync import (
    CheckpointCoordinator,
    CheckpointMonitor,
    fsdp_save_state_dict,
    layout,
    read_state_dict,
)
from fastsft.weight_sync.formats import Native
from ranks import run_ranks
from weight_sync_parts.agreement_world import heard
from weight_sync_parts.modules import make_engine, make_model, wrap
from weight_sync_parts.save_world import LOGGER


def check(job: Path, ranks: list[dict[str, Any]]) -> set[int]:
    """All ranks tell the same; what was not replaced is whole, what was is not there. The steps replaced."""
    assert ranks[0]["waited"] == ranks[1]["waited"] == "nothing"
    assert ranks[0]["tickets"] == ranks[1]["tickets"]
    replaced = set()
    for step, said in enumerate(ranks[0]["tickets"], 1):
        actor = job / f"global_step_{step}" / "actor"
        if said == "nothing":
            weight = read_state_dict(actor, checksums=True)["weight"]
            assert torch.equal(weight, torch.full((8, 8), float(step)))
            continue
        assert said.startswith(f"ReplacedError: saving step {step} to ") and "before it began" in said, said
        assert not (actor / layout.MANIFEST).exists()
        replaced.add(step)
    assert ranks[0]["named"] == len(ranks[0]["tickets"])
    return replaced


def test_a_newer_save_takes_the_place_of_one_that_waits(tmp_path: Path) -> None:
    ranks = run_ranks(2, in_order, str(tmp_path))
    assert check(tmp_path, ranks) == {2, 3}
    assert "replaced by step 4" in ranks[0]["tickets"][2]


def test_ranks_of_different_speed_agree(tmp_path: Path) -> None:
    check(tmp_path, run_ranks(2, at_random, str(tmp_path), 12))


@pytest.mark.chaos
def test_ranks_of_different_speed_agree_five_hundred_times(tmp_path: Path) -> None:
    ranks = run_ranks(2, at_random, str(tmp_path), 500, seconds=600.0)
    assert 10 < len(check(tmp_path, ranks)) < 490
    few = run_ranks(2, at_random, str(tmp_path / "few"), 1)
    assert ranks[0]["keys"] == few[0]["keys"]


class Foreign:
    """Trinity's coordinator has no `attach`."""

    def save_async(self, *_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be dispatched")


def test_a_coordinator_that_would_not_wait_is_refused(tmp_path: Path) -> None:
    engine = make_engine(make_model(False), "plain")
    with pytest.raises(ValueError, match="replace_pending: expected fastsft's CheckpointCoordinator"):
        fsdp_save_state_dict(engine, str(tmp_path), 1, Foreign(), LOGGER, replace_pending=True)


LIMIT_S = 60.0


class Saves:
    """Saves of a model whose every element is the step."""

    def __init__(self, folder: str) -> None:
        self.module = wrap(torch.nn.Linear(8, 8, bias=False), "fsdp2")
        self.engine, self.job = make_engine(self.module, "fsdp2"), Path(folder)
        first = dist.get_rank() == 0
        self.monitor = CheckpointMonitor(default_local_dir=folder) if first else None
        self.coordinator = CheckpointCoordinator(self.monitor)
        self.tickets: list[Any] = []

    def save(self, step: int, **options: Any) -> None:
        for parameter in self.module.parameters():
            with torch.no_grad():
                parameter.to_local().fill_(step)
        path = str(self.job / f"global_step_{step}" / "actor")
        ticket = fsdp_save_state_dict(
            self.engine, path, step, self.coordinator, LOGGER, format="native", deadline_s=LIMIT_S,
            **{"replace_pending": True, **options},
        )  # fmt: skip
        self.tickets.append(ticket)
        if self.monitor is not None:
            self.monitor.register_thread_count(step, state_dict_thread_count=1)
            self.monitor.monitor_step(step, True)

    def outcome(self) -> dict[str, Any]:
        """What `wait_all` and each ticket say, and the newest published step."""
        waited = heard(lambda: self.coordinator.wait_all(LIMIT_S))
        said = [heard(lambda: ticket.wait(LIMIT_S)) for ticket in self.tickets]  # noqa: B023
        dist.barrier()
        keys = own_store().num_keys()
        dist.barrier()
        named = layout.read_iteration(self.job / layout.STATE_DICT_FILE)
        return {"waited": waited, "tickets": said, "named": named, "keys": keys}


def in_order(_: Any, folder: str) -> dict[str, Any]:
    """Rank 0 writes step 1 until steps 2, 3 and 4 have been asked for; then two more as usual."""
    saves, release = Saves(folder), threading.Event()
    write = Native.write

    def slow(self: Any, directory: Path, tag: str, snapshot: Any) -> Any:
        if dist.get_rank() == 0:
            release.wait(LIMIT_S)
        return write(self, directory, tag, snapshot)

    Native.write = slow  # type: ignore[method-assign]
    for step in (1, 2, 3, 4):
        saves.save(step)
    release.set()
    saves.save(5, replace_pending=False)
    found = saves.outcome()
    Native.write = write  # type: ignore[method-assign]
    return found


def at_random(_: Any, folder: str, times: int) -> dict[str, Any]:
    """Ranks and their writers at different speeds."""
    generator, saves = random.Random(dist.get_rank()), Saves(folder)
    write = Native.write

    def slow(self: Any, directory: Path, tag: str, snapshot: Any) -> Any:
        time.sleep(generator.uniform(0, 0.03))
        return write(self, directory, tag, snapshot)

    Native.write = slow  # type: ignore[method-assign]
    for step in range(1, times + 1):
        saves.save(step)
        time.sleep(generator.uniform(0, 0.03))
    found = saves.outcome()
    Native.write = write  # type: ignore[method-assign]
    return found
