"""Ranks that meet for the doctor, come late, fail or add wrongly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from doctor_patient import Patient, checks_of, tree
from fastsft.doctor import communication
from fastsft.doctor.check import ProblemError
from fastsft.ranks.process_group import Groups
from fastsft.runtime.launch import Launch


def test_two_ranks_talk_to_each_other() -> None:
    found = communication.started_ranks(2, "cpu", 60)
    assert found["bytes"] == 1 << 24 and found["seconds"] > 0


LATE = """
import time
time.sleep(100)
"""
FAILING = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("no network today")
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("program", "seconds", "said"),
    [
        (LATE, 0.5, "of 2 ranks, 0, 1 did not start within 0.5 s"),
        (FAILING, 60, "rank 1 of 2 left with status 1; .* no network today"),
    ],
)
def test_ranks_that_do_not_come(
    program: str, seconds: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "communication.py").write_text(program)
    monkeypatch.setattr(communication, "__file__", str(tmp_path / "communication.py"))
    started: list[communication.Ranks] = []

    class Kept(communication.Ranks):
        def __init__(self, *words: object, **more: object) -> None:
            super().__init__(*words, **more)  # type: ignore[arg-type]
            started.append(self)

    monkeypatch.setattr(communication, "Ranks", Kept)
    with pytest.raises(ProblemError, match=said):
        communication.started_ranks(2, "cpu", seconds)
    assert all(rank.process.poll() is not None for rank in started[0].ranks), "a rank is left"


class Waiting:
    """A rank that still runs."""

    def __init__(self, number: int, *lines: str) -> None:
        self.number, self.lines = number, lines


@pytest.mark.parametrize(
    ("lines", "said"),
    [((), "of 2 ranks, 1 did not start"), (("came",), "of 2 ranks, 0, 1 did not finish the exchange")],
)
def test_who_is_missing(lines: tuple[str, ...], said: str) -> None:
    ranks: list[Any] = [Waiting(0, "came"), Waiting(1, *lines)]
    with pytest.raises(ProblemError, match=said):
        communication._complain([], ranks, 2, 30)


def test_a_wrong_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranks whose values do not arrive."""
    monkeypatch.setattr(communication, "join", lambda seconds, device: Groups("gather", "reduce"))
    monkeypatch.setattr(communication, "launch", lambda: Launch(0, 0, 2, 2))
    monkeypatch.setattr(distributed_c10d, "_resolve_process_group", lambda name: name)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values, group: None)
    with pytest.raises(RuntimeError, match=r"rank 0: .* gave 1.0 to 1.0, expected 3.0"):
        communication.exchange("cpu", 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_a_launcher(rank: int, patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """All take part, the first one looks at the rest and prints."""
    asked = []

    def exchanged(device: str, seconds: float) -> dict[str, float]:
        asked.append(device)
        return {"bytes": 2.0**20, "seconds": 1.0}

    monkeypatch.setattr(communication, "exchange", exchanged)
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    found = patient()
    assert asked == ["cpu"] and patient.status == 0
    if rank == 0:
        assert (
            found["communication"][1] == "2 ranks met over gloo; an all_reduce of 1.0 MiB is right, 1.0 MiB/s"
        )
        assert "2 ranks, no_shard" in found["memory"][1]
    else:
        assert not patient.text


@pytest.mark.chaos
def test_under_torchrun(patient: Patient, tmp_path: Path) -> None:
    line = [part for pair in patient.words.items() for part in pair]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [sys.executable, *launcher, "-m", "fastsft.cli.main", "doctor", "--skip", "disk_rate", *line]
    before = tree(tmp_path)
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    found = checks_of(result.stdout)
    assert found["communication"][1].startswith("2 ranks met over gloo"), result.stdout
    assert result.stdout.count("configuration") == 1 and tree(tmp_path) == before
