"""Random templates and conversations: a rendering process answers or ends, its caller gets one error."""

from __future__ import annotations

from pathlib import Path

import pytest

import rendering_trials
from data_formats import labelled, write_records
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from published_templates import PUBLISHED, write_model
from template_conversations import CONVERSATIONS

RECORDS = [
    {"messages": messages, **({"tools": tools} if tools else {})}
    for messages, tools in CONVERSATIONS.values()
]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 9)] + [0]
)
def test_every_answer_has_pieces_or_a_fault(seed: int) -> None:
    """And known forms change nothing: rendering_trials.py."""
    counts = rendering_trials.start(seed, 400 if seed else 80)
    assert (
        counts["pieces"] > 2 * counts["does not compile"] > 0
        and counts["failure"] > 0
        and counts["trait"] > 0
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_caller_gets_labels_or_a_value_error(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = list(PUBLISHED)[seed * 7]
    model = write_model(tmp_path / "model", name)
    place = model / "chat_template.jinja"
    trial = rendering_trials.Trial(seed, rendering_trials.templates())
    place.write_text(trial.mutated(trial.mutated(place.read_text("utf-8"))), "utf-8")
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=1 << 14)
    native = find_native_tokenizer(tokenizer)
    assert native is not None
    records = write_records(tmp_path / "d.jsonl", RECORDS)
    chosen = LabelSettings(mask_policy="spans", template="model")
    try:
        seen = labelled(
            records, make_labeller(native, 1 << 14, 0, chosen, tokenizer=tokenizer, self_test=True)
        )
    except ValueError as error:
        assert str(error) and "ended its process" not in str(error)
    else:
        reasons = [entry.reason for entry in seen.report.entries.values()]
        assert seen.report.num_whole == len(RECORDS) and not any("ended its" in reason for reason in reasons)
    assert "Traceback" not in capfd.readouterr().err
