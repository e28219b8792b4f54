"""Rows that are labelled again, with the settings of their file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.command_line import TRAINER
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.conversation_labels import label_conversation_file
from fastsft.data.label_files import FileOptions
from fastsft.tokenizer.tokenizer import Tokenizer


class Foreign:
    """A tokenizer without a native equal."""

    bos_token_id, eos_token_id, pad_token_id, model_max_length = 1, 2, 0, 64


def test_spans_need_a_native_tokenizer_again(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    records = json.loads((TRAINER / "data" / "first48.json").read_text())[:3]
    file.write_text(json.dumps(records))
    tokenizer = Tokenizer.from_pretrained(TRAINER / "model_untied", model_max_length=64)
    settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1")
    rows = label_conversation_file(str(file), tokenizer, settings, FileOptions(data_cache="none"))
    assert rows.label_alike is not None
    sources = [record["conversations"] for record in records]
    assert len(rows.label_alike(sources, tokenizer).native) == len(rows.native)
    with pytest.raises(ValueError, match="--mask_policy spans: Foreign has no native equal in fastsft"):
        rows.label_alike(sources, Foreign())
