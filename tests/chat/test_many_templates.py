"""Labels of every kind of conversation by 50 published templates, against what transformers renders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from published_templates import PUBLISHED
from template_conversations import CONVERSATIONS
from template_table import judge_template, read_table


def test_the_table_is_of_enough() -> None:
    table = read_table()
    assert len(table) >= 40 and len(CONVERSATIONS) >= 30 and list(table) == list(PUBLISHED)
    assert all(list(row) == list(CONVERSATIONS) for row in table.values())
    counts = Counter(outcome for row in table.values() for outcome in row.values())
    assert set(counts) == {"equal", "leaves", "refused", "lost"} and counts["equal"] > 0.75 * counts.total()


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_reply_is_the_templates_own_after_the_prompt_of_a_server(name: str, tmp_path: Path) -> None:
    """Or left out for a reason that is true: the template refuses the conversation, or writes no calls."""
    pairs = judge_template(tmp_path / name, name)
    assert not {kind: pair.detail for kind, pair in pairs.items() if pair.outcome == "differs"}
    assert {kind: pair.outcome for kind, pair in pairs.items()} == read_table()[name]
