"""Fixtures for tests on the fake device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_device import build
from fake_device.running import FakeDevice


@pytest.fixture(autouse=True, scope="session")
def needs_the_fake_device() -> None:
    if reason := build.missing():
        pytest.skip(reason)


@pytest.fixture
def fake_device(tmp_path: Path) -> Callable[..., FakeDevice]:
    """Make a fake device whose reports are in a folder of its own."""
    made: list[FakeDevice] = []

    def make(**settings: Any) -> FakeDevice:
        made.append(FakeDevice(tmp_path / f"reports{len(made)}", **settings))
        return made[-1]

    return make
