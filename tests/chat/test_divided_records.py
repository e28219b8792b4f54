"""Records whose replies have no place in one text get rows of their own, and no other record does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastsft.data.data_module import make_supervised_data_module
from fastsft.tokenizer import Tokenizer
from published_templates import write_model
from template_conversations import CONVERSATIONS, TOOLS, call, gives, says, user
from template_table import Judge

TWO_TURNS = [user("Ping?"), says("Pong."), user("Tick?"), says("Tock.")]
TOOL_TURNS = [
    user("Rome?"), says("", calls=[call("weather", {"city": "Rome"})]), gives("sunny"), says("Sunny."),
    user("Thanks"), says("Welcome."),
]  # fmt: skip


@pytest.mark.parametrize("rule", ["error", "skip", "repair"])
def test_one_record_divides_no_other(rule: str, tmp_path: Path) -> None:
    """Mistral Nemo's template writes tools before the last user's message: only that record needs rows."""
    judge = Judge(tmp_path / "m", "mistral-nemo", on_bad_sample=rule)
    records = [
        {"id": "plain", "messages": TWO_TURNS},
        {"id": "tools", "messages": TOOL_TURNS, "tools": TOOLS},
        {"id": "after", "messages": TWO_TURNS},
    ]
    seen = judge.label(records)
    plain, tools = (judge.reference.replies(*asked) for asked in ((TWO_TURNS, None), (TOOL_TURNS, TOOLS)))
    rows = [(len(seen.dataset.learned(i)), seen.dataset.ids(i).tolist()) for i in range(len(seen.dataset))]
    assert [count for count, _ in rows] == [2, 1, 1, 1, 2]
    for (_, ids), reply in zip(rows[1:4], tools, strict=True):
        assert ids[: len(reply.context) + len(reply.learned)] == [*reply.context, *reply.learned]
    assert rows[0] == rows[4] and rows[0][1][: len(plain[1].context)] == plain[1].context
    split = seen.report.entries["split"]
    assert split.count == 3 and split.first == ["tools_1", "tools_3", "tools_5"]
    assert seen.report.num_excluded == 0 and seen.report.num_records == 5


def test_replies_that_are_not_learned_have_no_row(tmp_path: Path) -> None:
    judge = Judge(tmp_path / "m", "mistral-nemo")
    marked = [{**m, "train": False} if i == 1 else m for i, m in enumerate(TOOL_TURNS)]
    found, _ = judge.rows(marked, TOOLS)
    expected = judge.reference.replies(TOOL_TURNS, TOOLS)[1:]
    assert found == [(reply.context, reply.learned) for reply in expected]
    only = [{**m, "train": i == 1} if m["role"] == "assistant" else m for i, m in enumerate(TOOL_TURNS)]
    found, report = judge.rows(only, TOOLS)
    first = judge.reference.replies(TOOL_TURNS, TOOLS)[0]
    assert found == [(first.context, first.learned)] and report.num_excluded == 0


@pytest.mark.covering
@pytest.mark.parametrize("turns", ["last", "each"])
@pytest.mark.parametrize("name", ["hermes-3", "gpt-oss", "mistral-nemo", "kimi-k2-thinking", "lfm2.5"])
def test_rows_are_those_of_the_flag(name: str, turns: str, tmp_path: Path) -> None:
    """--train_turns each makes the same rows of every record, --train_turns last the last of them."""
    judge = Judge(tmp_path / "m", name, train_turns=turns)
    for messages, tools in (
        CONVERSATIONS[kind] for kind in ("two", "call", "think_two", "think_call_two_turns")
    ):
        expected = [(reply.context, reply.learned) for reply in judge.reference.replies(messages, tools)]
        assert judge.rows(messages, tools)[0] == (expected if turns == "each" else expected[-1:])


def test_lazy_preprocess_has_an_effect_where_no_record_is_divided(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", "mistral-nemo")
    for messages, kind, count in (
        (TWO_TURNS, "LazySupervisedDataset", 1),
        (TOOL_TURNS, "SupervisedDataset", 3),
    ):
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps([{"messages": messages, "tools": TOOLS if count > 1 else None}]))
        tokenizer = Tokenizer.from_pretrained(model, model_max_length=2048)
        given: Any = SimpleNamespace(
            data_path=str(path),
            eval_data_path=None,
            lazy_preprocess=True,
            data_cache="none",
            mask_policy="spans",
        )
        made = make_supervised_data_module(tokenizer, given)["train_dataset"]
        assert (type(made).__name__, len(made)) == (kind, count)


def test_a_reply_that_begins_as_its_prompt_ends(tmp_path: Path) -> None:
    """No token of the prompt is learned: MiniMax M2's ends with <think>, and so may a reply's text begin."""
    judge = Judge(tmp_path / "m", "minimax-m2")
    for text, learned in (
        ("<think>\nhm\n</think>\n\nHo", "hm\n</think>\n\nHo"),
        ("<think>hm</think>Ho", "hm</think>Ho"),
        ("Ho <think>", "Ho <think>"),
    ):
        seen = judge.label([{"messages": [user("Hi"), says(text)]}])
        ((begin, end),) = seen.dataset.learned(0)
        assert judge.native is not None
        own = judge.native.decode(seen.dataset.ids(0).tolist()[begin:end])
        assert "".join(own.removesuffix("[e~[").split()) == "".join(learned.split())
