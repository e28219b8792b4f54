"""Warnings of libraries are not among the words of a reply."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers

from fastsft.cli import chat
from fastsft.tokenizer.tokenizer import Tokenizer
from generic_engines import library_model
from inspected_models import write_byte_level_model


def test_what_libraries_say_while_a_model_answers_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Tokenizer.from_pretrained(str(write_byte_level_model(tmp_path))).vocab_size
    model = library_model(
        "gpt2",
        vocab_size=rows,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    model.save_pretrained(tmp_path)
    own = transformers.GPT2LMHeadModel.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the newest models of transformers, which tell of kernels that are not there when called."""
        transformers.logging.get_logger("transformers.models.gpt2").warning("falls back to a slower kernel")
        warnings.warn("a tensor without a place", stacklevel=1)
        return own(self, *args, **kwargs)

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", forward)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    before = transformers.logging.get_verbosity()
    try:
        with warnings.catch_warnings():
            assert (
                chat.main([str(tmp_path), "--message", "a", "--template", "chatml", "--max_new_tokens", "3"])
                == 0
            )
    finally:
        transformers.logging.set_verbosity(before)
    shown = capsys.readouterr()
    assert "slower kernel" not in shown.err + shown.out and "without a place" not in shown.err + shown.out
