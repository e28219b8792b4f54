"""The tokenizer of a tokenizer.json: native where fastsft reproduces it exactly, else the library's."""

from __future__ import annotations

from pathlib import Path

from fastsft import _C
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import MOST_TOKENIZER_BYTES, read_text
from fastsft.tokenizer.byte_pair_files import VOCAB, tokenizer_json
from fastsft.tokenizer.library_tokenizer import library_tokenizer
from fastsft.tokenizer.settings import TokenizerSettings


def load_json_tokenizer(path: Path, settings: TokenizerSettings) -> _C.Tokenizer:
    """The tokenizer at `path`. ValueError when the file is damaged; a line says when the library runs it."""
    try:
        return _C.read_json_tokenizer(str(path), settings.native())
    except _C.UnsupportedTokenizerError as reason:
        warn_once(
            f"{path}: fastsft has no native equal of {reason}; the tokenizers library runs it, which is slow"
        )
    text = read_text(path, MOST_TOKENIZER_BYTES, "a tokenizer.json")
    return library_tokenizer(text, settings, str(path))


def load_byte_pair_tokenizer(directory: Path, settings: TokenizerSettings) -> _C.Tokenizer:
    """The tokenizer of vocab.json and merges.txt. ValueError when one is damaged."""
    text = tokenizer_json(directory, settings.named.get("bos_token"))
    where = str(directory / VOCAB)
    try:
        return _C.parse_json_tokenizer(text, where, settings.native())
    except _C.UnsupportedTokenizerError as reason:
        warn_once(
            f"{where}: fastsft has no native equal of {reason}; the tokenizers library runs it, which is slow"
        )
    return library_tokenizer(text, settings, where)
