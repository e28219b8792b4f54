"""One warm process for all tests that fork ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from warm_ranks import TRAINER, WarmRanks

SHORT = json.loads((TRAINER / "h_resume.json").read_text())["flags"]


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    """Starts runs of `fastsft.train` without the seconds of its imports."""
    ranks = WarmRanks(tmp_path_factory.mktemp("logs"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def flags() -> dict[str, Any]:
    """A run of 12 steps; on several ranks with `spread`."""
    return {**SHORT, "num_train_epochs": 2, "save_steps": 3, "save_total_limit": 2}
