"""Whatever memory there is, a load of data ends with its rows or with one clear error."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "memory_sweep.py"


def record(number: int, words: int) -> dict[str, Any]:
    text = " ".join(random.Random(number).choices(["alpha", "beta", "gamma", "delta"], k=words))
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": text}]
    return {"id": str(number), "conversations": turns}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An array and lines of small records with large ones among them; one record of many turns."""
    folder = tmp_path_factory.mktemp("data")
    mixed = [record(number, 200_000 if number % 16 == 0 else 300) for number in range(96)]
    turns = [{"from": ("human", "gpt")[i % 2], "value": "word " * 8} for i in range(200_000)]
    many = [record(0, 10), {"id": "1", "conversations": turns}, record(2, 10)]
    found = {name: folder / f"{name}.json" for name in ("array", "turns")} | {"lines": folder / "lines.jsonl"}
    found["array"].write_text(json.dumps(mixed))
    found["turns"].write_text(json.dumps(many))
    found["lines"].write_text("".join(json.dumps(each) + "\n" for each in mixed))
    return found


def sweep(path: Path, limits: list[int]) -> list[dict[str, Any]]:
    words = [sys.executable, str(PROGRAM), str(path), *map(str, limits)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr.strip(), done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(outcomes: list[dict[str, Any]], limits: list[int], records: int) -> None:
    assert [each["mib"] for each in outcomes] == limits
    for each in outcomes:
        rows = each["said"] == f"records {records}"
        assert each["status"] == 0 and (rows or each["said"].startswith("MemoryError: ")), each


@pytest.mark.variants("[lines]")
@pytest.mark.parametrize("name", ["array", "lines", "turns"])
def test_a_dozen_limits(files: dict[str, Path], name: str) -> None:
    limits = [0, 3, 10, 25, 60, 90, 130, 180, 250, 400, 900, 6000]
    outcomes = sweep(files[name], limits)
    check(outcomes, limits, 3 if name == "turns" else 96)
    kinds = {each["said"].split(":")[0] for each in outcomes}
    assert any(kind.startswith("records") for kind in kinds) and "MemoryError" in kinds


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["array", "lines", "turns"])
def test_two_hundred_limits(files: dict[str, Path], name: str) -> None:
    limits = [*range(0, 120), *range(120, 920, 10)]
    check(sweep(files[name], limits), limits, 3 if name == "turns" else 96)
