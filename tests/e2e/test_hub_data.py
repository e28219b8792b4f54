"""A run of two ranks on data of the hub: it goes on without a network, and not with other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from local_hub import local_hub
from warm_ranks import TRAINER

from .command_line import start

NAME = "hf://datasets/a/b"


@pytest.mark.thorough
def test_a_run_on_data_of_the_hub_goes_on_without_a_network_and_not_with_other_data(
    short: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (TRAINER / short["data_path"]).read_bytes()
    flags = {**short, "data_path": NAME, "save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    with local_hub() as hub:
        commit = hub.add("a/b", {"train.json": data, "test.json": data, "README.md": b"# Chats\n"})
        for name, value in hub.environment(tmp_path / "hub").items():
            monkeypatch.setenv(name, value)
        first = start(flags, tmp_path / "out", ranks=2)
        (line,) = [each for each in first.stderr.splitlines() if "is read; not read" in each]
        assert line.endswith(f"{NAME}: the split train is read; not read: test ({NAME}/test.json)")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        second = start({**flags, "max_steps": 2}, tmp_path / "out", ranks=2)
        (line,) = [each for each in second.stderr.splitlines() if "was not reached" in each]
        assert line.endswith("in the cache: 1 file, train.json")
        assert "step 2/2" in second.stdout
        monkeypatch.delenv("HF_HUB_OFFLINE")
        other = data.replace(b"the", b"a")
        hub.add("a/b", {"train.json": other})
        alone = {**flags, "gradient_accumulation_steps": 2 * flags["gradient_accumulation_steps"]}
        third = start({**alone, "max_steps": 3}, tmp_path / "out", check=False)
        assert third.returncode == 1
        assert "checkpoint-2 was trained on other data" in third.stderr
        pinned = {**alone, "data_path": f"{NAME}@{commit}", "max_steps": 3}
        assert "step 3/3" in start(pinned, tmp_path / "out").stdout
