"""A model that is not what it was at the last call: the new one is saved and sent, or an error says so."""

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
from ranks import run_ranks
from weight_sync_parts import begin_world
from weight_sync_parts.modules import make_engine
from weight_sync_parts.receivers import make_groups
from weight_sync_parts.save_world import FORMATS, LOGGER


def layers(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def replace(engine: Any) -> None:
    engine.module = layers(1)


def grow(engine: Any) -> None:
    engine.module.append(nn.Linear(4, 2))


def resize(engine: Any) -> None:
    engine.module[0] = nn.Linear(4, 9)


def widen(engine: Any) -> None:
    engine.module.double()


CHANGES = [replace, grow, resize, widen]


def check(found: dict[str, torch.Tensor], engine: Any) -> None:
    expected = engine.module.state_dict()
    assert list(found) == list(expected) or found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("save_format", FORMATS)
def test_a_changed_model_is_saved_as_it_is(save_format: str, change: Any, tmp_path: Path) -> None:
    engine, coordinator = make_engine(layers(), "plain"), CheckpointCoordinator()
    for step in (1, 2):
        fsdp_save_state_dict(engine, str(tmp_path), step, coordinator, LOGGER, format=save_format)
        coordinator.wait_all(60)
        check(read_state_dict(tmp_path, checksums=True), engine)
        change(engine)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_uploaded_and_planned_as_it_is(change: Any) -> None:
    engine, synchronizer = make_engine(layers(), "plain", per_tensor=False), Synchronizer()
    for step in (1, 2):
        fsdp_upload_state_dict(engine, synchronizer, step, LOGGER)
        found, _ = synchronizer.get_model_state_dict()
        assert found is not None
        check(found, engine)
        plan = sync_plan(engine)
        state = engine.module.state_dict()
        assert plan.names == list(state) and plan.dtypes == [tensor.dtype for tensor in state.values()]
        assert plan.shapes == [list(tensor.shape) for tensor in state.values()]
        change(engine)


@pytest.mark.parametrize("change", [grow, resize])
def test_a_broadcast_keeps_to_the_plan_that_receivers_have(change: Any) -> None:
    engine = make_engine(layers(), "plain", per_tensor=False)
    sync_plan(engine)
    change(engine)
    (group,) = make_groups(1)
    with pytest.raises(RuntimeError, match="make a new plan"):
        fsdp_sync_weight_nccl(engine, group)
    sync_plan(engine)
    group.rebuild()
    assert fsdp_sync_weight_nccl(engine, group) == 1


def test_parameters_that_a_forward_left_whole_are_planned_and_saved(tmp_path: Path) -> None:
    for seen in run_ranks(2, begin_world.after_a_forward, str(tmp_path)):
        assert seen == {"missing": [], "said": "nothing", "same": True}


def test_a_tensor_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    engine = make_engine(layers(), "plain")
    engine.module.register_buffer("turns", torch.ones(3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r'tensor turns: dtype "torch.complex64": .*complex and quantized'):
        fsdp_save_state_dict(engine, str(tmp_path), 1, CheckpointCoordinator(), LOGGER)
