"""save_dtype="float16" of values that it does not hold: refused in place of infinities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastsft.weight_sync import (
    CheckpointCoordinator,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    read_state_dict,
    sync_plan,
)
from weight_sync_parts.modules import make_engine
from weight_sync_parts.receivers import sync

EXPECTED = (
    r"weight: expected values that float16 holds, up to 65504, got 1 beyond, up to 65520; take save_dtype"
)


def engine_with(value: float) -> Any:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight[1, 2] = value
    return make_engine(module, "plain", per_tensor=False)


def test_a_save_and_an_upload_are_refused(tmp_path: Path) -> None:
    engine, coordinator, synchronizer = engine_with(-65520.0), CheckpointCoordinator(), Synchronizer()
    ticket = fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, None, save_dtype="float16")
    assert ticket is not None
    with pytest.raises(RuntimeError, match=EXPECTED):
        ticket.wait(60)
    with pytest.raises(RuntimeError, match=EXPECTED):
        coordinator.wait_all()
    with pytest.raises(ValueError, match=EXPECTED):
        fsdp_upload_state_dict(engine, synchronizer, 1, None, save_dtype="float16")
    assert synchronizer.model_version == 0


@pytest.mark.parametrize("mode", ["trinity", "native"])
def test_a_broadcast_is_refused(mode: str) -> None:
    engine = engine_with(65520.0)
    plan = sync_plan(engine, save_dtype="float16")

    def send(group: Any) -> int:
        return fsdp_sync_weight_nccl(engine, group, mode=mode, save_dtype="float16", deadline_s=5.0)

    outcome, _ = sync(send, plan, mode=mode, deadline_s=5.0)
    assert isinstance(outcome, ValueError | RuntimeError) and EXPECTED.split(",")[0] in str(outcome)


@pytest.mark.parametrize("value", [65519.0, float("inf"), float("nan")])
def test_what_it_holds_is_saved(value: float, tmp_path: Path) -> None:
    engine, coordinator = engine_with(value), CheckpointCoordinator()
    fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, None, save_dtype="float16")
    coordinator.wait_all()
    found = read_state_dict(tmp_path)["weight"]
    assert torch.equal(found, engine.module.weight.detach().half()) or value != value
