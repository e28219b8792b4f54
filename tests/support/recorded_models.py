"""The tiny random models that the runs of tests/golden/families were recorded with, made again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

GOLDEN = Path(__file__).parents[1] / "golden"
_COMMON = {
    "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.08,
}  # fmt: skip
_WITHOUT_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
# model_type: seed, tokenizer, configuration.
MODELS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "opt": (31, "llama2_nonlegacy", {
        **_COMMON, **_WITHOUT_DROPOUT, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512, "init_std": 0.08,
    }),
    "gpt2": (32, "llama2_legacy", {
        **_COMMON, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }),
    "gemma2": (33, "llama2_legacy", {
        **_COMMON, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "query_pre_attn_scalar": 8, "sliding_window": 64,
        "max_position_embeddings": 512,
    }),
    "mixtral": (34, "llama2_legacy", {
        **_COMMON, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": None,
        "max_position_embeddings": 512,
    }),
}  # fmt: skip


def write_recorded(name: str, folder: Path) -> Path:
    """The model directory of one of MODELS."""
    seed, tokenizer, settings = MODELS[name]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder, max_shard_size="5MB")
    for file in (GOLDEN / "tokenizers" / tokenizer).iterdir():
        shutil.copyfile(file, folder / file.name)
    return folder
