"""Small vocabularies drawn at random, with merges in any order: the ids of `tokenizers` and `sentencepiece`.

A word with the text of a token need not become it: its merges may come too late, in another order or never.
Every token of a vocabulary is therefore a word here, beside all short words of its letters.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers

from byte_level_files import content, native
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN

MARK = "▁"
SHORT_WORDS = ["".join(word) for size in range(1, 7) for word in itertools.product("ab", repeat=size)]


def draw_merges(draw: random.Random, symbols: list[str]) -> list[tuple[str, str]]:
    """Merges of what earlier ones made, some a second way to one text; half of the lists shuffled."""
    texts, merges = [*symbols], []
    for _ in range(draw.randint(2, 24)):
        left, right = draw.choice(texts), draw.choice(texts)
        if len(left + right) <= 9:
            merges.append((left, right))
            texts.append(left + right)
    if draw.random() < 0.5:
        draw.shuffle(merges)
    if draw.random() < 0.2:
        merges.append(draw.choice(merges or [("a", "b")]))
    return merges if all(part in texts for merge in merges for part in merge) else []


def draw_words(draw: random.Random, tokens: list[str], letters: str) -> list[str]:
    """Each token, alone and beside a letter, and long words: past 15 and past 62 symbols."""
    words = [token + end for token in tokens for end in ("", "a", "b")]
    words += ["".join(draw.choices(letters, k=draw.randint(7, 20))) for _ in range(40)]
    words += ["".join(draw.choices(tokens, k=draw.randint(2, 40))) for _ in range(20)]
    return words


def draw_vocabulary(draw: random.Random, symbols: list[str], merges: list[tuple[str, str]]) -> dict[str, int]:
    """Ids in any order: they say nothing about the order of the merges."""
    texts = list(dict.fromkeys([*symbols, *(left + right for left, right in merges), "abab", "bba"]))
    draw.shuffle(texts)
    return {text: number for number, text in enumerate(texts)}


@pytest.mark.parametrize("ignores_merges", [False, True])
def test_byte_level(ignores_merges: bool) -> None:
    file = content("gpt2")
    alphabet = [text for text in file["model"]["vocab"] if len(text) == 1]
    file["added_tokens"] = []
    for seed in range(150):
        draw = random.Random(seed)
        merges = draw_merges(draw, ["a", "b", "Ġ"][: 2 + seed % 2])
        file["model"]["vocab"] = draw_vocabulary(draw, alphabet, merges)
        file["model"].update(merges=[" ".join(merge) for merge in merges], ignore_merges=ignores_merges)
        text = json.dumps(file)
        ours, theirs = native(text), tokenizers.Tokenizer.from_str(text)
        tokens = [token.replace("Ġ", " ") for token in file["model"]["vocab"] if token not in alphabet]
        words = [*SHORT_WORDS, *draw_words(draw, [*tokens, "a", " b"], "ab")]
        expected = [found.ids for found in theirs.encode_batch_fast(words, add_special_tokens=False)]
        found = ours.encode_batch([word.encode() for word in words], True)
        wrong = [word for word, a, b in zip(words, expected, found, strict=True) if a != b]
        assert not wrong, (seed, wrong[:3], merges)


def metaspace_file(draw: random.Random, merges: list[tuple[str, str]], has_space: bool) -> dict[str, Any]:
    """A vocabulary with its merges; `has_space`: some of it has a space, which no text has behind Replace."""
    symbols = ["<unk>", MARK, "a", "b", *([" "] if has_space else [])]
    unmark = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [unmark, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "fuse_unk": draw.random() < 0.5,
            "byte_fallback": False,
            "vocab": draw_vocabulary(draw, symbols, merges),
            "merges": [list(merge) for merge in merges],
        },
    }


def test_metaspace() -> None:
    for seed in range(150):
        draw = random.Random(seed)
        letters = ["a", "b", MARK, " "][: 3 + seed % 2]
        merges = draw_merges(draw, letters)
        text = json.dumps(metaspace_file(draw, merges, " " in letters))
        ours, theirs = native(text), tokenizers.Tokenizer.from_str(text)
        tokens = [(left + right).replace(MARK, " ") for left, right in merges]
        words = [*SHORT_WORDS, *draw_words(draw, [*tokens, "a", " b", "xa"], "ab x\u2581")]
        expected = [found.ids for found in theirs.encode_batch_fast(words, add_special_tokens=False)]
        found = ours.encode_batch([word.encode() for word in words], True)
        wrong = [word for word, a, b in zip(words, expected, found, strict=True) if a != b]
        assert not wrong, (seed, wrong[:3], merges)


def sentencepiece_model(draw: random.Random, letters: list[str], has_bytes: bool) -> bytes:
    """Pieces with a few different scores; "q" and at times a space have no piece of their own."""
    from sentencepiece import sentencepiece_model_pb2

    source = (GOLDEN / "tokenizers" / "llama2_legacy" / "tokenizer.model").read_bytes()
    model = sentencepiece_model_pb2.ModelProto.FromString(source)
    special = [model.pieces[number] for number in range(259 if has_bytes else 3)]
    pieces = {"".join(draw.choices(letters, k=draw.randint(2, 6))) for _ in range(draw.randint(3, 40))}
    texts = [*sorted(pieces), "a", "b", MARK]
    draw.shuffle(texts)
    del model.pieces[:]
    model.pieces.extend(special)
    for text in texts:
        model.pieces.add(piece=text, score=-float(draw.randint(0, 12)))
    model.trainer_spec.byte_fallback = has_bytes
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize("has_bytes", [False, True])
def test_sentencepiece(has_bytes: bool, tmp_path: Path) -> None:
    config = (GOLDEN / "tokenizers" / "llama2_legacy" / "tokenizer_config.json").read_bytes()
    (tmp_path / "tokenizer_config.json").write_bytes(config)
    for seed in range(100):
        draw = random.Random(seed)
        data = sentencepiece_model(draw, ["a", "b", MARK, "q", " "][: 2 + seed % 4], has_bytes)
        (tmp_path / "tokenizer.model").write_bytes(data)
        ours = Tokenizer.from_pretrained(tmp_path)
        theirs: Any = sentencepiece.SentencePieceProcessor(model_proto=data)
        pieces = [theirs.id_to_piece(number) for number in range(theirs.get_piece_size())]
        tokens = [piece.replace(MARK, " ") for piece in pieces if not piece.startswith("<")]
        words = [*SHORT_WORDS, *draw_words(draw, [*tokens, "xq", "qa"], "ab qx\u2581")]
        found = ours.encode_batch(words, split_special_tokens=True)
        wrong = [word for word, a, b in zip(words, theirs.encode(words), found, strict=True) if a != b]
        assert not wrong, (seed, wrong[:3], tokens)
