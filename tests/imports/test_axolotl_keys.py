"""Keys of axolotl whose meaning depends on other keys.

The expected values are read off the sources of axolotl 0.19, and off 0.4.0 for `type: sharegpt`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fastsft.arguments.imports.draft import Draft, Fate
from fastsft.arguments.imports.source import read_source

BREAKS = "the line breaks around a reply's text were learned there"
SHARES = {"path": "chats.jsonl", "ds_type": "json", "type": "sharegpt"}


def imported(folder: Path, **keys: Any) -> Draft:
    path = folder / "axolotl.yaml"
    chats = {"path": "chats.jsonl", "ds_type": "json", "type": "chat_template"}
    path.write_text(yaml.safe_dump({"base_model": "model", "datasets": [chats], **keys}))
    return read_source(path).translate(folder)


def fate(draft: Draft, key: str) -> tuple[Fate, str]:
    return next((row.fate, row.text) for row in draft.rows if row.key == key)


@pytest.mark.parametrize(
    ("keys", "ratio", "steps"),
    [
        ({}, 0.03, None),
        ({"warmup_ratio": 0.1}, 0.1, None),
        ({"warmup_ratio": None}, 0.03, None),
        ({"warmup_steps": 10}, None, 10),
        ({"warmup_steps": 1}, None, 2),
        ({"warmup_steps": 0}, None, 0),
        ({"max_steps": 50}, None, 2),
        ({"max_steps": 20}, None, 0),
        ({"max_steps": 9000}, None, 100),
        ({"max_steps": 29, "warmup_ratio": 0.1}, None, 2),
        ({"max_steps": 15, "warmup_ratio": 0.1}, None, 2),
        ({"max_steps": 9000, "warmup_ratio": 0.1}, None, 900),
        ({"max_steps": 9000, "warmup_steps": 5}, None, 5),
    ],
)
def test_warm_up(keys: dict[str, Any], ratio: float | None, steps: int | None, tmp_path: Path) -> None:
    draft = imported(tmp_path, **keys)
    assert (draft.values.get("warmup_ratio"), draft.values.get("warmup_steps")) == (ratio, steps)
    assert not [row.key for row in draft.rows if row.fate is Fate.LOST]


def test_a_ratio_next_to_steps_is_not_read(tmp_path: Path) -> None:
    draft = imported(tmp_path, warmup_steps=7, warmup_ratio=0.1)
    assert draft.values["warmup_steps"] == 7 and "warmup_ratio" not in draft.values
    assert fate(draft, "warmup_ratio") == (Fate.IDLE, "warmup_steps counts")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps"),
        ({"gradient_accumulation_steps": 1}, ""),
        ({"batch_size": 8, "micro_batch_size": 2}, "batch_size"),
        ({"batch_size": 2, "micro_batch_size": 2}, ""),
    ],
)
def test_weights_of_micro_batches_are_named(keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    draft = imported(tmp_path, **keys)
    assert [row.key for row in draft.rows if "there each micro-batch does" in row.text] == [named] * bool(
        named
    )


@pytest.mark.parametrize(
    ("keys", "template", "part"),
    [
        ({}, "vicuna_v1.1", ""),
        ({"datasets": [{**SHARES, "conversation": "llama-2"}]}, "llama-2", ""),
        ({"chat_template": "chatml"}, "chatml", BREAKS),
        ({"chat_template": "llama3"}, "llama-3", BREAKS),
        ({"datasets": [{**SHARES, "conversation": "zephyr"}]}, "zephyr", BREAKS),
        (
            {"datasets": [{**SHARES, "conversation": "llama-3"}], "chat_template": "chatml"},
            "llama-3",
            BREAKS,
        ),
        (
            {"datasets": [{**SHARES, "conversation": "orion"}]},
            "model",
            "conversation: orion is none of airoboros_v3, alpaca,",
        ),
        (
            {"datasets": [{**SHARES, "conversation": "chatml"}, {**SHARES, "conversation": "zephyr"}]},
            "chatml",
            "data sets with templates of their own: one is written",
        ),
    ],
)
def test_fastchats_template_by_its_name(
    keys: dict[str, Any], template: str, part: str, tmp_path: Path
) -> None:
    draft = imported(tmp_path, **{"datasets": [SHARES], **keys})
    assert (draft.values["mask_policy"], draft.values["template"]) == ("spans", template)
    found, text = fate(draft, "datasets")
    assert found is (Fate.LOST if part else Fate.CARRIED) and part in text


@pytest.mark.parametrize(
    ("keys", "system"),
    [
        ({}, None),
        ({"chat_template": "llama3"}, "You are a helpful assistant."),
        ({"chat_template": "chatml", "default_system_message": "Be brief."}, "Be brief."),
        (
            {"datasets": [{**SHARES, "conversation": "chatml"}], "default_system_message": "Be brief."},
            "You are a helpful assistant.",
        ),
        ({"datasets": [{**SHARES, "conversation": "llama-3"}]}, None),
    ],
)
def test_the_system_text_of_the_old_conversations(
    keys: dict[str, Any], system: str | None, tmp_path: Path
) -> None:
    assert imported(tmp_path, **{"datasets": [SHARES], **keys}).values.get("default_system") == system


def test_fields_that_the_type_names(tmp_path: Path) -> None:
    own = {"field_instruction": "ask", "field_output": "output", "field_input": "", "format": "{instruction}"}
    draft = imported(tmp_path, datasets=[{"path": "pairs.jsonl", "ds_type": "json", "type": own}])
    assert "rename the field ask to instruction; " in fate(draft, "datasets")[1]
    assert "rename the field output" not in fate(draft, "datasets")[1]
