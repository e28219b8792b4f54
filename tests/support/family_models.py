"""Tiny random models of every family, with a tokenizer and a chat template as such models have them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import byte_level_files
from golden_text import GOLDEN

TEMPLATES = GOLDEN / "chat_templates"
_HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PHI = ("<|endoftext|>", "<|assistant|>", "<|end|>", "<|system|>", "<|user|>")
# Family -> (model_type, special tokens of a byte-level tokenizer or None for SentencePiece, template, config)
FAMILIES: dict[str, tuple[str, tuple[str, ...] | None, str | None, dict[str, Any]]] = {
    "qwen2": ("qwen2", _CHATML, "qwen", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "qwen3": ("qwen3", _CHATML, "qwen3", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "phi3": ("phi3", _PHI, "phi", {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}),
    "llama3": ("llama", _HEADERS, "llama-3", {"bos_token": _HEADERS[0], "eos_token": "<|eot_id|>"}),
    "llama3_base": ("llama", _HEADERS, None, {"bos_token": _HEADERS[0], "eos_token": "<|eot_id|>"}),
    "mistral": ("mistral", None, "mistral_v0.1", {}),
    "llama2_chat": ("llama", None, "llama-2", {}),
    "llama2": ("llama", None, None, {}),
}


# The default of Phi-3, 32000, is beyond a small vocabulary.
_PADDING: dict[str, dict[str, int]] = {"phi3": {"pad_token_id": 0}}


def write_family(directory: Path, family: str) -> Path:
    """A model directory of `FAMILIES[family]`, equal for equal arguments."""
    kind, specials, template, settings = FAMILIES[family]
    directory.mkdir(parents=True)
    rows = _sentencepiece(directory) if specials is None else _byte_level(directory, specials, settings)
    if template is not None:
        shutil.copyfile(TEMPLATES / f"{template}.jinja", directory / "chat_template.jinja")
    _write_weights(directory, kind, rows)
    return directory


def _sentencepiece(directory: Path) -> int:
    for path in (GOLDEN / "tokenizers" / "llama2_legacy").iterdir():
        shutil.copyfile(path, directory / path.name)
    return 32000


def _byte_level(directory: Path, specials: tuple[str, ...], settings: dict[str, Any]) -> int:
    content = byte_level_files.small_qwen2()
    known = content["model"]["vocab"]
    unknown = [text for text in specials if text not in known]
    ids = {text: known.get(text) or len(known) + unknown.index(text) for text in specials}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"] = [
        {"id": number, "content": text, "special": True, **flags} for text, number in ids.items()
    ]
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    byte_level_files.write_directory(directory, json.dumps(content), kind)
    return max(ids.values()) + 1


def _write_weights(directory: Path, kind: str, rows: int) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=rows, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, **_PADDING.get(kind, {}),
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
