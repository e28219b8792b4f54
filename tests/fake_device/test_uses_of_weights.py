"""Weights are read, saved, sent and loaded while steps are under way, as when the device is at rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_device.cases import MUTATED, STRATEGIES
from fake_device.models import with_models
from fake_device.running import LONG, PATIENCE, FakeDevice, run_program
from fastsft import _C

FakeDevices = Callable[..., FakeDevice]
pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("options", ["plain", "offload", "offload split"])
@pytest.mark.parametrize("strategy", _C.strategies())
def test_uses_of_weights(strategy: str, options: str, fake_device: FakeDevices, tmp_path: Path) -> None:
    name = f"{strategy} {options}"
    case = {**STRATEGIES, **MUTATED}[name]
    ranks = 2 * (case["node_size"] or 1)
    device = fake_device(schedule="lazy", races=True, devices=ranks, settings={"PATIENCE": PATIENCE})
    words = json.dumps(with_models({name: case}))
    done = run_program(device, "uses_of_weights", "cuda", str(tmp_path), words, ranks=ranks, seconds=LONG)
    for each in done:
        under_way, at_rest = each[name]
        assert under_way == at_rest
    device.check()
