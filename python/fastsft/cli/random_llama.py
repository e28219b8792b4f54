"""Small Llama models with random weights, for the demo and for benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def llama_config(
    *,
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    intermediate_size: int,
    max_positions: int = 2048,
    tie_word_embeddings: bool = False,
) -> dict[str, Any]:
    """A Hugging Face `config.json` of the Llama family; `num_heads` divides `hidden_size`."""
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tie_word_embeddings,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face's tensor names and shapes for `config`."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{name}.self_attn.{projection}.weight"] = (hidden, hidden)
        shapes[f"{name}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{name}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{name}.mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{name}.input_layernorm.weight"] = (hidden,)
        shapes[f"{name}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def write_random_llama(directory: Path, config: dict[str, Any], seed: int = 0) -> int:
    """Writes config.json and model.safetensors (float32) and returns the number of parameters.

    Matrices are normal with standard deviation `initializer_range`, norms are one.
    """
    generator = torch.Generator().manual_seed(seed)
    deviation = config["initializer_range"]
    weights = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.empty(shape).normal_(0.0, deviation, generator=generator)
        for name, shape in tensor_shapes(config).items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return sum(weight.numel() for weight in weights.values())
