"""Every recorded text: ids of SentencePiece and of the slow LlamaTokenizer, offsets that rebuild it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fastsft.tokenizer import Tokenizer
from golden_text import CONVERSATIONS, GOLDEN, MODES, digest, read_rows, read_texts

TEXTS = (*CONVERSATIONS, "wiki_demo", "tokenizer_edge_texts")


@pytest.mark.parametrize("mode", [*MODES, "llama2_spm"])
@pytest.mark.parametrize("name", TEXTS)
def test_ids_and_offsets_equal_the_goldens(mode: str, name: str) -> None:
    plain = mode == "llama2_spm"  # SentencePiece itself knows no special tokens in texts
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / ("llama2_legacy" if plain else mode))
    texts, goldens = read_texts(name), read_rows("tokenizer_ids", f"{name}.{mode}")
    assert len(texts) == len(goldens)
    for text, golden in zip(texts, goldens, strict=True):
        ids, offsets = tokenizer.encode_with_offsets(text, split_special_tokens=plain)
        assert (ids if name == "tokenizer_edge_texts" else [len(ids), digest(ids)]) == golden, text[:80]
        data = text.encode()
        assert b"".join(data[begin:end] for begin, end in offsets) == data
        assert all(a[1] == b[0] for a, b in pairwise(offsets))


@pytest.mark.parametrize("mode", MODES)
def test_batch_equals_one_by_one(mode: str) -> None:
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode)
    texts = read_texts("tokenizer_edge_texts")
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch(["a"], add_special_tokens=True) == [[1, *tokenizer.encode("a")]]
