"""vocab.json and merges.txt, which older models (OPT, GPT-2) have in the place of a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastsft.runtime.regular_files import MOST_TOKENIZER_BYTES, file_inside, read_json_object, read_text
from fastsft.tokenizer.settings import read_config, tokenizer_class

VOCAB, MERGES = "vocab.json", "merges.txt"


def has_byte_pair_files(directory: Path) -> bool:
    """True for a directory with both files whose tokenizer is transformers' GPT2Tokenizer."""
    there = all(file_inside(directory, name) is not None for name in (VOCAB, MERGES))
    return there and tokenizer_class(directory) == "GPT2Tokenizer"


def tokenizer_json(directory: Path, bos_token: str | None) -> str:
    """The tokenizer.json that transformers makes of both files. ValueError when one is damaged.

    bos_token: what add_bos_token of tokenizer_config.json puts in front of a text.
    """
    vocab = read_json_object(directory / VOCAB)
    lines = read_text(directory / MERGES, MOST_TOKENIZER_BYTES, "merges of a tokenizer").split("\n")
    merges = [line.split() for line in lines[1:-1]]  # the first line is a version, the last one is empty
    for number, pair in enumerate(merges, 2):
        if len(pair) != 2:
            raise ValueError(f"{directory / MERGES}: line {number}: expected two pieces, got {len(pair)}")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {**level, "trim_offsets": False},
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip
    if read_config(directory).get("add_bos_token") and bos_token is not None:
        content["post_processor"] = _bos_in_front(bos_token, vocab.get(bos_token), directory)
    return json.dumps(content)


def _bos_in_front(text: str, number: Any, directory: Path) -> dict[str, Any]:
    if not isinstance(number, int):
        raise ValueError(f"{directory / VOCAB}: expected an id of {text!r}, which is put in front of texts")
    one: list[dict[str, Any]] = [
        {"SpecialToken": {"id": text, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    return {
        "type": "TemplateProcessing",
        "single": one,
        "pair": [*one, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [number], "tokens": [text]}},
    }
