"""Every recorded text: ids of `tokenizers`, offsets that rebuild it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from byte_level_files import native_portable, tokenizer_pair
from golden_text import CONVERSATIONS, digest, read_rows, read_texts

TEXTS = (*CONVERSATIONS, "wiki_demo", "tokenizer_edge_texts")


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k"])
@pytest.mark.parametrize("name", TEXTS)
def test_ids_and_offsets_equal_the_goldens(tokenizer: str, name: str) -> None:
    ours, portable = tokenizer_pair(tokenizer)[0], native_portable(tokenizer)
    texts, goldens = read_texts(name), read_rows("tokenizer_ids", f"{name}.{tokenizer}")
    assert len(texts) == len(goldens)
    for text, golden in zip(texts, goldens, strict=True):
        data = text.encode()
        ids, offsets = ours.encode_with_offsets(data)
        assert (ids if name == "tokenizer_edge_texts" else [len(ids), digest(ids)]) == golden, text[:80]
        assert b"".join(data[begin:end] for begin, end in offsets) == data
        assert all(a[1] == b[0] for a, b in pairwise(offsets))
        assert ours.encode(data) == ids == portable.encode(data)


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k"])
def test_flat_batch_equals_one_by_one(tokenizer: str) -> None:
    ours, _ = tokenizer_pair(tokenizer)
    texts = read_texts("tokenizer_edge_texts")
    ids, ends = ours.encode_flat(texts)
    begins = [0, *ends[:-1]]
    rows = [ids[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]
    assert rows == [ours.encode(text.encode()) for text in texts]
