"""Weights go to another process's device in every mode, without a race with the training that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fake_device.running import FakeDevice, run_program
from fake_device.sync_mutations import ALL_RIGHT

FakeDevices = Callable[..., FakeDevice]
pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("schedule", ["lazy", "random", "mixed"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_mode(
    ranks: int, schedule: str, fake_device: Callable[..., FakeDevice], tmp_path: Path
) -> None:
    device = fake_device(schedule=schedule, races=True, devices=ranks)
    assert run_program(device, "synced_weights", str(tmp_path), ranks=ranks) == [ALL_RIGHT] * ranks
    device.check()
