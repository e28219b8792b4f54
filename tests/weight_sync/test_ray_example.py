"""examples/weight_sync_ray.py with real Ray: the actor has the trainer's weights after each sync."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install ray")
EXAMPLE = Path(__file__).parents[2] / "examples" / "weight_sync_ray.py"
SECONDS = 600

pytestmark = pytest.mark.chaos


def test_an_actor_follows_the_trainer_three_ways(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(EXAMPLE),
        "--output_dir",
        str(tmp_path / "out"),
        "--steps",
        "3",
        "--every",
        "1",
    ]
    environment = {**os.environ, "RAY_worker_niceness": "0"}  # else a busy machine leaves actors nothing
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("step")]
    assert [(words[1], words[2]) for words in lines] == [("1", "save"), ("2", "upload"), ("3", "broadcast")]
    iteration = tmp_path / "out" / "job" / "latest_state_dict_iteration.txt"
    assert iteration.read_text() == "1"
