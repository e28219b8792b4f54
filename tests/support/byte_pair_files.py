"""Directories with vocab.json and merges.txt, as OPT, GPT-2 and Qwen 2 have them, of a small BPE."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from golden_text import GOLDEN

_OPT_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
_END = "<|endoftext|>"


@cache
def _trained(first: tuple[str, ...]) -> dict[str, Any]:
    """Vocabulary and merges of the texts of some conversations; tokens `first` have the first ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(first), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    records = json.loads((GOLDEN / "trainer/data/first48.json").read_text())
    texts = [turn["value"] for each in records for turn in each["conversations"]]
    tokenizer.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def write_byte_pairs(folder: Path, kind: str) -> Path:
    """The tokenizer of a model of `kind`, opt or gpt2, and its files around it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = _trained(tuple(_OPT_TOKENS) if kind == "opt" else ())
    vocab = {**model["vocab"], **({} if kind == "opt" else {_END: len(model["vocab"])})}
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    config: dict[str, Any] = {"model_max_length": 1024}
    if kind == "opt":
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
        named = {"unk_token": "</s>", "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}
        tokens = {name: {"content": text, **flags} for name, text in named.items()}
        (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
        typed = {name: {**token, "__type": "AddedToken"} for name, token in tokens.items()}
        config = {"errors": "replace", **typed, "add_prefix_space": False, "add_bos_token": True,
                  "tokenizer_class": "GPT2Tokenizer"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def write_qwen2_pairs(folder: Path, *, version: bool = True) -> Path:
    """Of a Qwen 2: its special tokens are in tokenizer_config.json alone. merges.txt may have no version."""
    folder.mkdir(parents=True, exist_ok=True)
    model = _trained(())
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    (folder / "merges.txt").write_text("\n".join([*(["#version: 0.2"] * version), *merges, ""]), "utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokens = (_END, "<|im_start|>", "<|im_end|>")
    config = {
        "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": _END,
        "unk_token": None, "errors": "replace", "model_max_length": 1024, "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": list(tokens[1:]),
        "added_tokens_decoder": {
            str(len(model["vocab"]) + at): {"content": text, **flags} for at, text in enumerate(tokens)
        },
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
