"""Writes models with random weights and a small SentencePiece tokenizer, for the demo and for benchmarks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fastsft import _C
from fastsft.runtime.output_files import replace_file

UNK, BOS, EOS = "<unk>", "<s>", "</s>"


def train_tokenizer(directory: Path, texts: Iterable[str], *, vocab_size: int, model_max_length: int) -> None:
    """Train a Llama tokenizer on `texts`, and write its three files into `directory`.

    Text is not normalised, and characters outside of the vocabulary are spelled as bytes, so that decoding
    gives back every text. Ids: <unk> 0, <s> 1, </s> 2, then 256 bytes, then the learned pieces.
    """
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / "tokenizer.model", sentencepiece_bpe(texts, vocab_size))
    write_json(directory / "tokenizer_config.json", tokenizer_config(model_max_length))
    write_json(directory / "special_tokens_map.json", {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK})


def sentencepiece_bpe(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train SentencePiece's BPE with Llama's settings; return the content of `tokenizer.model`."""
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
    """Return tokenizer_config.json for a LlamaTokenizer that adds <s> before a text, but nothing after."""
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
        # If this were False, "USER" after </s> would be tokenized without a leading space, into single
        # letters. FastChat's label rule would then miscount tokens, and mask each conversation of two turns.
        "legacy": True,
        "model_max_length": model_max_length,
        "padding_side": "right",
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
    }


def write_json(path: Path, value: object) -> None:
    replace_file(path, json.dumps(value, indent=2) + "\n")


# Of the mixtures of experts, by model_type.
_EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


def small_config(
    *,
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    intermediate_size: int,
    max_positions: int = 2048,
    tie_word_embeddings: bool = False,
    model_type: str = "llama",
) -> dict[str, Any]:
    """Return a `config.json`. ValueError if `num_heads` does not divide `hidden_size`."""
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}")
    return {
        "architectures": [f"{_C.model_families()[model_type]}ForCausalLM"],
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": tie_word_embeddings,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
        "use_cache": True,
        **_EXPERTS.get(model_type, {}),
    }


def write_random_model(directory: Path, config: dict[str, Any], seed: int = 0) -> int:
    """Write config.json and model.safetensors (float32); return the parameter count.

    Matrices are drawn from a normal distribution with standard deviation `initializer_range`. Norm weights
    are 1, and biases are 0.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: _initial(name, shape, config["initializer_range"], generator)
        for name, shape in _C.parameter_shapes(json.dumps(config))
    }
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
    replace_file(directory / "model.safetensors", save(weights, metadata={"format": "pt"}))
    return sum(weight.numel() for weight in weights.values())


def _initial(name: str, shape: list[int], deviation: float, generator: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)
