"""Every code point and random texts: ids of `sentencepiece` and of the slow LlamaTokenizer.

The long runs are marked chaos; the suite takes samples of the same texts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sentencepiece

from fastsft import _C
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, hf_tokenizer, read_texts
from mixed_texts import code_points, in_parts, random_texts

MODEL = str(GOLDEN / "tokenizers" / "llama2_legacy" / "tokenizer.model")


def check_plain(texts: Iterator[str]) -> None:
    processor: Any = sentencepiece.SentencePieceProcessor(model_file=MODEL)
    ours = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_legacy")
    for part in in_parts(texts):
        expected, found = processor.encode(part), ours.encode_batch(part, split_special_tokens=True)
        wrong = [text for text, a, b in zip(part, expected, found, strict=True) if a != b]
        assert not wrong, (len(wrong), wrong[:3])


def check_slow(mode: str, texts: Iterator[str]) -> None:
    theirs, ours = hf_tokenizer(mode), Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode)
    for part in in_parts(texts):
        found = ours.encode_batch(part)
        wrong = [
            text
            for text, ids in zip(part, found, strict=True)
            if ids != theirs.encode(text, add_special_tokens=False)
        ]
        assert not wrong, (len(wrong), wrong[:3])


def test_sampled_code_points() -> None:
    check_plain(code_points(101))


def test_some_random_texts() -> None:
    check_plain(random_texts(20_000, seed=1))


@pytest.mark.parametrize("mode", MODES)
def test_some_random_texts_in_transformers(mode: str) -> None:
    check_slow(mode, random_texts(2_000, seed=2))


@pytest.mark.chaos
def test_all_code_points() -> None:
    check_plain(code_points(1))


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_all_code_points_in_transformers(mode: str) -> None:
    check_slow(mode, code_points(1))


@pytest.mark.chaos
def test_a_million_random_texts() -> None:
    check_plain(random_texts(1_000_000, seed=3))


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
def test_a_million_random_texts_in_transformers(mode: str) -> None:
    check_slow(mode, random_texts(1_000_000, seed=4))


def test_long_runs_equal_sentencepiece() -> None:
    units = ("a", "▁", " ", "你好龘", "abcdefgh", "😀", "-", "ab ", "\n", "\u0301")
    check_plain(unit * (5_000 // len(unit)) + end for unit in units for end in ("", " a", "▁"))


def test_ranges_of_long_words_rebuild_the_text() -> None:
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_nonlegacy")
    for text in random_texts(2_000, seed=5):
        ids, ranges = tokenizer.encode_with_offsets(text, split_special_tokens=True)
        data = text.encode()
        assert b"".join(data[begin:end] for begin, end in ranges) == data
        assert ids == tokenizer.encode(text, split_special_tokens=True)


def test_several_threads_at_once() -> None:
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_legacy")
    texts = [*read_texts("tokenizer_edge_texts"), *random_texts(500, seed=6)]
    expected = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(lambda: [tokenizer.encode(text) for text in texts]) for _ in range(6)]
    assert all(run.result() == expected for run in runs)


def test_byte_masks_by_every_instruction_set() -> None:
    draw = random.Random(7)
    for size in (1, 3):
        data = bytes(draw.choice((0x20, 0xE2, 0x21, 0x1F, 0xE3, 0xA0, 0x62, 0)) for _ in range(64 * size))
        expected = [
            tuple(sum((data[64 * block + i] == byte) << i for i in range(64)) for byte in (0x20, 0xE2))
            for block in range(size)
        ]
        for finder in range(_C.num_mask_finders()):
            assert _C.byte_masks(finder, data) == expected
