"""Tokenizer objects that are called for ids."""

from __future__ import annotations

import pytest

from fastsft.tokenizer.called_tokenizer import called_tokenizer


class NotCalled:
    bos_token_id, eos_token_id, pad_token_id, model_max_length, legacy = 1, 2, 0, 8, True


def test_an_object_that_cannot_be_called_is_named() -> None:
    with pytest.raises(TypeError, match="expected a tokenizer of fastsft or transformers, got NotCalled"):
        called_tokenizer(NotCalled())
