"""A tokenizer of bytes: numbers of a data set for which no model has been chosen yet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastsft import _C

NO_LIMIT = 1 << 29  # bytes of a row; a record that is longer is nobody's conversation


def byte_tokenizer(special: Sequence[str]) -> _C.Tokenizer:
    """The native tokenizer with an id for each byte, in the order of GPT-2's alphabet, and then `special`."""
    from fastsft import _C

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
    """GPT-2's characters for the 256 bytes: those that print as themselves, the others from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printing] + [chr(0x100 + i) for i in range(256 - len(printing))]
