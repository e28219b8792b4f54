"""Tokenizer objects that are called for ids."""

from __future__ import annotations

import pytest

from fastsft import _C
from fastsft.tokenizer.transformers_tokenizer import called_tokenizer


class NotCalled:
    bos_token_id, eos_token_id, pad_token_id, model_max_length, legacy = 1, 2, 0, 8, True


def test_an_object_that_cannot_be_called_is_named() -> None:
    with pytest.raises(TypeError, match="expected a tokenizer of fastsft or transformers, got NotCalled"):
        called_tokenizer(NotCalled())


def test_texts_stay_while_the_tokenizer_is_called() -> None:
    """Whatever becomes of the list in between: its texts are read until the end."""
    texts = [str(number) * 300_000 for number in range(1, 9)]
    seen, others = [], []

    def encode(text: str) -> list[int]:
        seen.append((len(text), set(text)))
        if text:  # not the question what an empty text gives
            texts.clear()
        others.extend("z" * 300_000 for _ in range(10))
        return [len(seen)]

    ids, _ = _C.CalledTokenizer(encode, lambda: False, _C.NamedIds()).encode_flat(texts)
    assert seen[-8:] == [(300_000, {str(number)}) for number in range(1, 9)] and len(ids) == 8
