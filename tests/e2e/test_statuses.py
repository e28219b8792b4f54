"""Statuses of runs that bad numbers and wrong bits end, on two ranks: the same on both, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warm_ranks import WarmRanks, spread

# Four micro-batches a step on each of two ranks; a step that is computed twice has eight.
CASES: dict[str, tuple[dict[str, Any], tuple[Any, ...], int, str]] = {
    "not finite": ({}, ("spoil_gradient", 1, 6, float("inf")), 4, "error: step "),
    "another bit in a replay": (
        {"replay_check": 2}, ("flip_gradient", 1, 6), 16,
        "error: step 2 was computed twice and the bits differ: rank 1 computed different gradients",
    ),
    "another state": (
        {"replay_check": 2, "fsdp": ""}, ("deviate", 1), 17,
        "error: after step 2 copies of the state differ: ranks 0, 1 against the others, in the state of head",
    ),
}  # fmt: skip


@pytest.mark.variants("another bit", "not finite")
@pytest.mark.parametrize("case", CASES)
def test_the_status_says_what_happened(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, case: str
) -> None:
    options, fault, status, message = CASES[case]
    given = {**spread(flags, 2), "max_steps": 4, "save_steps": 1, "micro_batch_tokens": 1, **options}
    run = warm.start({name: value for name, value in given.items() if value != ""}, tmp_path, 2, fault)
    assert run.wait(60) == [status, status], run.all_text()
    text = run.all_text()
    assert text.count("error: ") == 1 and message in run.text(0, "err"), text
    assert "Traceback" not in text
    assert (tmp_path / "checkpoint-1").is_dir() and not (tmp_path / "checkpoint-2").exists()
