"""Rows that the generic engine does not take: refused by number, before a step computes any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from generic_rows_run import REFUSED, REPEATED, outcome
from ranks import run_ranks

MESSAGES = {
    "positions": "position_ids: expected those of each row to be 0, 1, 2, ...",
    "longer": "has 80 tokens, but the model has 64 positions",
    "masked": "attention_mask: the row begins with masked tokens",
    "left": "position_ids: expected those of each row to be 0, 1, 2, ...",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_rows_of_a_list_are_refused_when_the_trainer_is_made(kind: str, tmp_path: Path) -> None:
    said, steps = outcome({}, kind, "list", tmp_path)
    assert said.startswith(f"row {2 * REPEATED - 1}") and MESSAGES[kind] in said and steps == 0


@pytest.mark.parametrize("kind", REFUSED)
def test_rows_of_an_evaluation_are_refused(kind: str, tmp_path: Path) -> None:
    said, steps = outcome({}, kind, "evaluation", tmp_path)
    assert "row 1" in said and MESSAGES[kind] in said and steps == 0


@pytest.mark.parametrize("where", ["list", "read"])
def test_both_ranks_say_the_same(where: str, tmp_path: Path) -> None:
    """Rows that are read as the run goes on: before the step that has them."""
    told = run_ranks(2, outcome, "positions", where, tmp_path, launched=True, seconds=120)
    row, steps = (2 * REPEATED - 1, 0) if where == "list" else (REPEATED, 1)
    assert told[0] == told[1]
    assert told[0][0].startswith(f"row {row}: {MESSAGES['positions']}") and told[0][1] == steps
