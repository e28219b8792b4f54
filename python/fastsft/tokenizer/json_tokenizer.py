"""Make a tokenizer from a tokenizer.json.

The tokenizer is native if it can give the same ids; otherwise the library tokenizers runs it. The JSON comes
from a file, is made from vocab.json and merges.txt (OPT, GPT-2, Qwen), or describes a tokenizer of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastsft import _C
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import MOST_TOKENIZER_BYTES, file_inside, read_json_object, read_text
from fastsft.tokenizer.library_tokenizer import library_tokenizer
from fastsft.tokenizer.settings import TokenizerSettings, read_config, tokenizer_class


def load_json_tokenizer(path: Path, settings: TokenizerSettings) -> _C.Tokenizer:
    """Load the tokenizer.json at `path`. ValueError if the file is damaged.

    If the library tokenizers has to run the tokenizer, a warning is printed.
    """
    try:
        return _C.read_json_tokenizer(str(path), settings.native())
    except _C.UnsupportedTokenizerError as error:
        reason = str(error)
    return _in_library(read_text(path, MOST_TOKENIZER_BYTES, "a tokenizer.json"), settings, str(path), reason)


def load_byte_pair_tokenizer(directory: Path, settings: TokenizerSettings) -> _C.Tokenizer:
    """Load a tokenizer from vocab.json and merges.txt. ValueError if a file is damaged."""
    text, where = tokenizer_json(directory, settings.named.get("bos_token")), str(directory / VOCAB)
    try:
        return _C.parse_json_tokenizer(text, where, settings.native())
    except _C.UnsupportedTokenizerError as error:
        reason = str(error)
    return _in_library(text, settings, where, reason)


def _in_library(text: str, settings: TokenizerSettings, where: str, reason: str) -> _C.Tokenizer:
    warn_once(
        f"{where}: fastsft has no native equal of {reason}; the tokenizers library runs it, which is slow"
    )
    return library_tokenizer(text, settings, where)


NO_LIMIT = 1 << 29  # a row length in bytes that no conversation reaches


def byte_tokenizer(special: Sequence[str]) -> _C.Tokenizer:
    """Return a native tokenizer with an id for each byte, in GPT-2's order, and then for each of `special`.

    With this tokenizer, the records of a data set can be counted before a model is chosen.
    """
    settings = _C.JsonTokenizerSettings()
    return _C.parse_json_tokenizer(_json(special), "the tokenizer of bytes", settings)


def _json(special: Sequence[str]) -> str:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 256 + i, "content": text, "special": True, **flags} for i, text in enumerate(special)]
    return json.dumps({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(_alphabet())}, "merges": []},
    })  # fmt: skip


def _alphabet() -> list[str]:
    """Return GPT-2's characters for the 256 bytes.

    A printable byte stands for itself. Characters from U+0100 on stand for all other bytes.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printing] + [chr(0x100 + i) for i in range(256 - len(printing))]


VOCAB, MERGES = "vocab.json", "merges.txt"
_GPT2, _QWEN2 = "GPT2Tokenizer", "Qwen2Tokenizer"
# The pattern with which Qwen2Tokenizer splits texts into words: PRETOKENIZE_REGEX in transformers'
# tokenization_qwen2.py.
_WORDS_OF_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def has_byte_pair_files(directory: Path) -> bool:
    """True if the directory has vocab.json and merges.txt.

    ValueError if their tokenizer class is not supported.
    """
    if any(file_inside(directory, name) is None for name in (VOCAB, MERGES)):
        return False
    kind = tokenizer_class(directory)
    if kind in (_GPT2, _QWEN2):
        return True
    described = f"of {kind}" if kind else "of a class that no file names (tokenizer_class)"
    raise ValueError(
        f"{directory}: expected a tokenizer.json, got {VOCAB} and {MERGES} {described}; those of {_GPT2} and "
        f"{_QWEN2} are read. transformers writes a tokenizer.json: "
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    )


def tokenizer_json(directory: Path, bos_token: str | None) -> str:
    """Return the tokenizer.json that transformers makes from vocab.json and merges.txt.

    bos_token: the token that begins each text if tokenizer_config.json sets add_bos_token. ValueError if a
    file is damaged.
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
    """Return the pairs in merges.txt.

    For GPT2Tokenizer, the first line is always skipped, as in transformers.
    """
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
