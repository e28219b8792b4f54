"""Engines that come to an early end leave nothing under way in the memory that the next engine takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_device.cases import STRATEGIES
from fake_device.models import with_models
from fake_device.running import LONG, PATIENCE, FakeDevice, run_program

FakeDevices = Callable[..., FakeDevice]
pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_next_engine_trains_as_the_first(name: str, fake_device: FakeDevices, tmp_path: Path) -> None:
    case = STRATEGIES[name]
    ranks = 2 * (case["node_size"] or 1)
    device = fake_device(schedule="lazy", races=True, devices=ranks, settings={"PATIENCE": PATIENCE})
    arguments = ("cuda", str(tmp_path), json.dumps(with_models({name: case})), "3")
    done = run_program(device, "interrupted_steps", *arguments, ranks=ranks, seconds=LONG)
    played = [each[name] for each in done]
    errors = [each["refused model"] for each in played]
    assert errors == ["PeerFailedError"] * (ranks - 1) + ["ValueError"]
    for each in played:
        assert each["broken off"]["loss"] == each["whole"]["losses"][0]
        assert each["broken off"]["collectives"] > 3
    device.check()
