"""Engines on the fake device have the losses of the CPU, under every schedule, without a race."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fake_device.cases import (
    CONTEXT,
    DTYPES,
    GENERIC,
    GROUPS,
    OPTIONS,
    STRATEGIES,
    Cases,
    of_family,
    of_options,
)
from fake_device.models import with_models
from fake_device.running import LONG, FakeDevice, run_program
from native_families import CONFIGS

FakeDevices = Callable[..., FakeDevice]

# Limits of a loss, and relative ones of a gradient norm.
LIMITS = {"float32": (1e-6, 1e-5), "bfloat16": (5e-3, 3e-2), "float16": (2e-3, 1e-2), "fp8": (2e-2, 3e-2)}
ONE_RANK: Cases = {
    **{f"llama {name}": of_options(name) for name in OPTIONS},
    **{family: of_family(family, "float32") for family in CONFIGS if family != "untied"},
    **{f"{family} bfloat16": of_family(family, "bfloat16") for family in CONFIGS if family != "untied"},
    **{
        f"generic {family} {dtype}": of_family(family, dtype, generic=True)
        for family in GENERIC
        for dtype in DTYPES
    },
}
QUICK = {
    "lazy": ["llama narrow", "gemma2", "llama inputs on the host"],
    "mixed": ["llama offload", "llama float16", "llama long rows"],
}
# Nothing of lazy is random.
SCHEDULES = [("lazy", 1), *((schedule, seed) for schedule in ("random", "mixed") for seed in (1, 2, 3))]
QUICK_CONTEXT = ["full_shard bfloat16", "full_shard long rows", "no_shard recompute none"]
QUICK_ON_TWO_RANKS = ["full_shard bfloat16", "full_shard offload", "full_shard long rows"]


def assert_equal_curves(cases: Cases, ours: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, case in cases.items():
        options = case["options"]
        loss, norm = LIMITS["fp8" if "fp8" in options else options.get("compute_dtype", "float32")]
        assert ours[name]["losses"] == pytest.approx(expected[name]["losses"], abs=loss), name
        assert ours[name]["norms"] == pytest.approx(expected[name]["norms"], rel=norm), name


@cache
def curves_on_cpu(words: str, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank's steps have on the CPU, which has no schedule."""
    with tempfile.TemporaryDirectory() as folder:
        return run_program(None, "engine_steps", "cpu", folder, words, ranks=ranks, seconds=LONG)


def compare(cases: Cases, folder: Path, device: FakeDevice, ranks: int = 1) -> None:
    """Train `cases` on the CPU and on the device, and compare their curves."""
    words = json.dumps(with_models(cases))
    expected = curves_on_cpu(words, ranks)
    ours = run_program(device, "engine_steps", "cuda", str(folder), words, ranks=ranks, seconds=LONG)
    for rank in range(ranks):
        assert_equal_curves(cases, ours[rank], expected[rank])
    device.check()


@pytest.mark.parametrize("schedule", ["lazy", "mixed"])
def test_one_rank(schedule: str, fake_device: FakeDevices, tmp_path: Path) -> None:
    cases = {name: ONE_RANK[name] for name in QUICK[schedule]}
    compare(cases, tmp_path, fake_device(schedule=schedule, races=schedule == "mixed", seed=2))


@pytest.mark.chaos
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "mixed"])
def test_every_option_and_family(schedule: str, part: int, fake_device: FakeDevices, tmp_path: Path) -> None:
    cases = {name: ONE_RANK[name] for name in list(ONE_RANK)[part::3]}
    compare(cases, tmp_path, fake_device(schedule=schedule, races=True, seed=2))


def test_two_ranks(fake_device: FakeDevices, tmp_path: Path) -> None:
    cases = {name: STRATEGIES[name] for name in QUICK_ON_TWO_RANKS}
    compare(cases, tmp_path, fake_device(schedule="mixed", races=True, devices=2), ranks=2)


@pytest.mark.chaos
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_strategies(
    ranks: int, schedule: str, seed: int, fake_device: FakeDevices, tmp_path: Path
) -> None:
    """One after the other in the same processes: each takes the memory of those before."""
    device = fake_device(schedule=schedule, seed=seed, races=True, devices=ranks)
    compare(STRATEGIES, tmp_path, device, ranks=ranks)


def test_two_ranks_that_share_a_context(fake_device: FakeDevices, tmp_path: Path) -> None:
    cases = {name: CONTEXT[name] for name in QUICK_CONTEXT}
    compare(cases, tmp_path, fake_device(schedule="mixed", races=True, devices=2), ranks=2)


@pytest.mark.chaos
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "mixed"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_strategies_share_a_context(
    ranks: int, schedule: str, fake_device: FakeDevices, tmp_path: Path
) -> None:
    device = fake_device(schedule=schedule, seed=5, races=True, devices=ranks)
    compare(CONTEXT, tmp_path, device, ranks=ranks)


@pytest.mark.chaos
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_strategy_trains(ranks: int, group: str, fake_device: FakeDevices, tmp_path: Path) -> None:
    """Every family in both engines, and options of a strategy's own."""
    device = fake_device(schedule="mixed", seed=4, races=True, devices=ranks)
    compare(GROUPS[group], tmp_path, device, ranks=ranks)
