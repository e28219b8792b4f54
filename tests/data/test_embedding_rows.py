"""Tokens beyond the rows of the embedding are told before data is labelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.label_report import check_embedding
from fastsft.runtime.messages import collected
from fastsft.tokenizer.tokenizer import Tokenizer
from inspected_models import write_byte_level_model

OWN = LabelSettings(mask_policy="spans", template="model")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """Whose last token is the template's mark of a turn."""
    made = Tokenizer.from_pretrained(str(write_byte_level_model(tmp_path)))
    made.chat_template = "{% for message in messages %}" + made.decode([made.vocab_size - 1]) + "{% endfor %}"
    return made


def test_a_template_with_such_a_token_is_refused_with_the_way_out(tokenizer: Tokenizer) -> None:
    last = tokenizer.vocab_size - 1
    with pytest.raises(
        ValueError, match=rf"\(token id {last}\): expected ids below {last}.*resize_token_embed"
    ):
        check_embedding(tokenizer, OWN, rows=last)


@pytest.mark.parametrize("settings", [LabelSettings(), LabelSettings(mask_policy="spans", template="chatml")])
def test_tokens_that_no_template_writes_are_a_line(tokenizer: Tokenizer, settings: LabelSettings) -> None:
    with collected() as notices:
        check_embedding(tokenizer, settings, rows=tokenizer.vocab_size - 1)
    (line,) = notices.warned
    assert "ends the run" in line and "resize_token_embeddings" in line


@pytest.mark.parametrize("more", [0, 1, 64])
def test_as_many_rows_as_tokens_say_nothing(tokenizer: Tokenizer, more: int) -> None:
    with collected() as notices:
        check_embedding(tokenizer, OWN, rows=tokenizer.vocab_size + more)
    assert not notices.warned and not notices.told
