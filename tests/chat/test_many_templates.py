"""Labels of every kind of conversation by 50 published templates, against what transformers renders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from published_templates import PUBLISHED
from template_conversations import CONVERSATIONS
from template_table import judge_template, read_table

# JSON in the first user's text, thoughts only at the end, generation blocks, channels, calls with strict ids,
# replies without an end, a template for tools, ids in place of names, lost calls.
KINDS = (
    "llama-3.1",
    "qwen3",
    "lfm2.5",
    "gpt-oss",
    "mistral-nemo",
    "glm-4.6",
    "hermes-3",
    "kimi-k2-thinking-ids",
    "deepseek-r1-distill",
)


def test_the_table_is_of_enough() -> None:
    table = read_table()
    assert len(table) >= 40 and len(CONVERSATIONS) >= 30 and list(table) == list(PUBLISHED)
    assert all(list(row) == list(CONVERSATIONS) for row in table.values())
    counts = Counter(outcome for row in table.values() for outcome in row.values())
    assert set(counts) == {"equal", "leaves", "refused", "lost"} and counts["equal"] > 0.75 * counts.total()


@pytest.mark.thorough
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_reply_is_the_templates_own_after_the_prompt_of_a_server(name: str, tmp_path: Path) -> None:
    """Or left out for a reason that is true: the template refuses the conversation, or writes no calls."""
    _compare(name, tmp_path, list(CONVERSATIONS))


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_template_and_conversation_is(name: str, tmp_path: Path) -> None:
    """Each conversation by one template at least, each template by several conversations."""
    _compare(name, tmp_path, list(CONVERSATIONS)[KINDS.index(name) :: len(KINDS)])


def _compare(name: str, folder: Path, kinds: list[str]) -> None:
    pairs = judge_template(folder / name, name, kinds)
    assert not {kind: pair.detail for kind, pair in pairs.items() if pair.outcome == "differs"}
    recorded = read_table()[name]
    assert {kind: pair.outcome for kind, pair in pairs.items()} == {kind: recorded[kind] for kind in kinds}
