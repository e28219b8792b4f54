"""A small SentencePiece BPE tokenizer in a Hugging Face directory, trained on the demo's conversations."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastsft.runtime.output_files import replace_file

UNK, BOS, EOS = "<unk>", "<s>", "</s>"


def train_tokenizer(directory: Path, texts: Iterable[str], *, vocab_size: int, model_max_length: int) -> None:
    """Writes tokenizer.model, tokenizer_config.json and special_tokens_map.json for a Llama tokenizer.

    Text is kept as it is (no normalisation, byte fallback for what the pieces cannot spell), so that
    encoding and decoding lose nothing; ids are <unk> 0, <s> 1, </s> 2, then 256 bytes, then the pieces.
    """
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / "tokenizer.model", sentencepiece_bpe(texts, vocab_size))
    write_json(directory / "tokenizer_config.json", tokenizer_config(model_max_length))
    write_json(directory / "special_tokens_map.json", {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK})


def sentencepiece_bpe(texts: Iterable[str], vocab_size: int) -> bytes:
    """The bytes of a `tokenizer.model`, with the settings of Llama's own."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        allow_whitespace_only_pieces=True,
        character_coverage=0.99995,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def tokenizer_config(model_max_length: int) -> dict[str, Any]:
    """`tokenizer_config.json`: LlamaTokenizer, <s> in front, nothing after."""
    tokens = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, token in enumerate((UNK, BOS, EOS))
    }
    return {
        "added_tokens_decoder": tokens,
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK,
        "clean_up_tokenization_spaces": False,
        # The other mode spells "USER" after </s> without its leading space, letter by letter here, and the
        # label rule of FastChat then counts wrong and masks every conversation of two turns.
        "legacy": True,
        "model_max_length": model_max_length,
        "padding_side": "right",
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
    }


def write_json(path: Path, value: object) -> None:
    replace_file(path, json.dumps(value, indent=2) + "\n")
