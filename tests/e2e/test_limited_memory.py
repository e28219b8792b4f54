"""Whole runs with little memory: the usual end, or one line and a status of docs/signals.md; no abort."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from warm_ranks import WarmRanks, spread

REASONS = ("error: out of memory; give the run more", "error: cannot start a thread for ")


@pytest.fixture(scope="module")
def limited(flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A short run on small records with large ones among them."""
    chosen, path = random.Random(0), tmp_path_factory.mktemp("data") / "data.json"
    records = []
    for number in range(64):
        words = chosen.choices(["alpha", "beta", "gamma"], k=200_000 if number % 8 == 0 else 200)
        turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": " ".join(words)}]
        records.append({"id": str(number), "conversations": turns})
    path.write_text(json.dumps(records))
    given = {
        "data_path": str(path),
        "data_cache": "none",
        "plot_loss": False,
        "max_steps": 2,
        "save_steps": 1,
        "ddp_timeout": 15,  # rank 0 may end before the other one has found it
    }
    return {**flags, **given}


def ends_well(warm: WarmRanks, flags: dict[str, Any], output: Path, ranks: int, mib: int) -> bool:
    """Rank 0 has `mib` MiB more than a process that has imported everything. Whether the run was finished."""
    run = warm.start(spread(flags, ranks) if ranks > 1 else flags, output, ranks, ("limit_memory", 0, mib))
    statuses = run.wait(120)
    text = run.all_text()[-4000:]
    if statuses == [0] * ranks:
        return True
    assert statuses[0] == 1 and set(statuses[1:]) <= {1, 3}, (mib, statuses, text)
    assert any(reason in run.text(0, "err") for reason in REASONS), (mib, text)
    assert "Traceback" not in run.all_text(), (mib, text)
    return False


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_few_limits(warm: WarmRanks, limited: dict[str, Any], tmp_path: Path, ranks: int) -> None:
    limits = [20, 120, 260, 380] if ranks == 1 else [80, 360, 500]
    assert not all(ends_well(warm, limited, tmp_path / str(mib), ranks, mib) for mib in limits)
    assert ends_well(warm, limited, tmp_path / "enough", ranks, 6000)


@pytest.mark.chaos
@pytest.mark.parametrize("ranks", [1, 2])
def test_many_limits(warm: WarmRanks, limited: dict[str, Any], tmp_path: Path, ranks: int) -> None:
    for mib in [*range(10, 300, 30), *range(300, 420, 4), *range(420, 1200, 20)]:
        ends_well(warm, limited, tmp_path / str(mib), ranks, mib)
