"""Model directories without weights: a SentencePiece and a byte-level tokenizer, each with a template."""

from __future__ import annotations

import json
from pathlib import Path

import byte_level_files
from golden_text import GOLDEN

LLAMA = GOLDEN / "tokenizers" / "llama2_legacy"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_byte_level_model(directory: Path) -> Path:
    """Qwen 2's rules over the first pieces of GPT-2's vocabulary, with the special tokens of chatml."""
    content = byte_level_files.small_qwen2()
    known = content["model"]["vocab"]
    ids = {text: known.get(text, len(known) + number) for number, text in enumerate(SPECIALS)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"] = [
        {"id": number, "content": text, "special": True, **flags} for text, number in ids.items()
    ]
    (directory / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return directory
