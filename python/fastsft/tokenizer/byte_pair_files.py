"""vocab.json and merges.txt, which some models (OPT, GPT-2, Qwen) have in the place of a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastsft.runtime.regular_files import MOST_TOKENIZER_BYTES, file_inside, read_json_object, read_text
from fastsft.tokenizer.settings import read_config, tokenizer_class

VOCAB, MERGES = "vocab.json", "merges.txt"
_GPT2, _QWEN2 = "GPT2Tokenizer", "Qwen2Tokenizer"
# Where Qwen2Tokenizer cuts a text into words (PRETOKENIZE_REGEX of transformers' tokenization_qwen2.py).
_WORDS_OF_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def has_byte_pair_files(directory: Path) -> bool:
    """True for a directory with both files. ValueError when their class is none of those read here."""
    if any(file_inside(directory, name) is None for name in (VOCAB, MERGES)):
        return False
    kind = tokenizer_class(directory)
    if kind in (_GPT2, _QWEN2):
        return True
    found = f"of {kind}" if kind else "of a class that no file names (tokenizer_class)"
    raise ValueError(
        f"{directory}: expected a tokenizer.json, got {VOCAB} and {MERGES} {found}; those of {_GPT2} and "
        f"{_QWEN2} are read. transformers writes a tokenizer.json: "
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    )


def tokenizer_json(directory: Path, bos_token: str | None) -> str:
    """The tokenizer.json that transformers makes of both files. ValueError when one is damaged.

    bos_token: what add_bos_token of tokenizer_config.json puts in front of a text.
    """
    is_qwen2 = tokenizer_class(directory) == _QWEN2
    vocab = read_json_object(directory / VOCAB)
    level = _byte_level(use_regex=not is_qwen2)
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "NFC"} if is_qwen2 else None,
        "pre_tokenizer": _words_of_qwen2(level) if is_qwen2 else level,
        "post_processor": {**_byte_level(), "trim_offsets": False},
        "decoder": _byte_level(),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": _merges(directory / MERGES, is_qwen2),
        },
    }  # fmt: skip
    if not is_qwen2 and read_config(directory).get("add_bos_token") and bos_token is not None:
        content["post_processor"] = _bos_in_front(bos_token, vocab.get(bos_token), directory)
    return json.dumps(content)


def _byte_level(use_regex: bool = True) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _words_of_qwen2(level: dict[str, Any]) -> dict[str, Any]:
    pattern = {"Regex": _WORDS_OF_QWEN2}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def _merges(path: Path, is_qwen2: bool) -> list[list[str]]:
    """The pairs of merges.txt. GPT2Tokenizer takes the first line for a version, whatever is in it."""
    lines = read_text(path, MOST_TOKENIZER_BYTES, "merges of a tokenizer").split("\n")
    numbered = list(enumerate(lines, 1))
    if not is_qwen2:
        numbered = numbered[1:-1]  # the last line is empty
    else:
        begin = 1 if lines[0].startswith("#version:") else 0
        numbered = [(number, line) for number, line in numbered[begin:] if line.strip()]
    pairs = [(number, line.split()) for number, line in numbered]
    for number, pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"{path}: line {number}: expected two pieces, got {len(pair)}")
    return [pair for _, pair in pairs]


def _bos_in_front(text: str, number: object, directory: Path) -> dict[str, Any]:
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
