"""One warm process for all tests that fork ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from small_model import write_small_data, write_small_model
from warm_ranks import TRAINER, WarmRanks

SHORT = json.loads((TRAINER / "h_resume.json").read_text())["flags"]


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    """Starts runs of `fastsft.train` without the seconds of its imports."""
    ranks = WarmRanks(tmp_path_factory.mktemp("logs"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of 6 steps of a small model on short texts, which saves after steps 3 and 6."""
    folder = tmp_path_factory.mktemp("small")
    paths = {
        "model_name_or_path": write_small_model(folder),
        "data_path": write_small_data(folder / "data.json"),
    }
    return {**SHORT, **{name: str(path) for name, path in paths.items()}}


@pytest.fixture(scope="session")
def flags(short: dict[str, Any]) -> dict[str, Any]:
    """A run of 12 steps on whole texts, long enough for signals; on several ranks with `spread`."""
    return {
        **short,
        "data_path": SHORT["data_path"],
        "num_train_epochs": 2,
        "save_steps": 3,
        "save_total_limit": 2,
    }
