"""Settings of tiny models of every native family, with all parts of the family that rows of a few tokens use.

The one place of the tests that a new family is added to. It imports nothing, for the recorders.
"""

from __future__ import annotations

from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {
    "untied": {"model_type": "llama", "num_key_value_heads": 2},
    "tied": {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": True},
    "biases": {"model_type": "llama", "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 5},
    "qwen2": {
        "model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True,
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
    "phi3": {"model_type": "phi3", "num_key_value_heads": 2, "sliding_window": 5},
    "qwen3": {
        "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 10, "attention_bias": True,
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
    # Of so few experts that each gets tokens in each step (docs/numerics.md says what torch does otherwise).
    "qwen3_moe": {
        "model_type": "qwen3_moe", "num_key_value_heads": 2, "head_dim": 10, "attention_bias": True,
        "use_sliding_window": True, "sliding_window": 5, "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "norm_topk_prob": True,
    },
    "mixtral": {
        "model_type": "mixtral", "num_key_value_heads": 2, "sliding_window": 5, "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gemma2": {
        "model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True,
        "sliding_window": 5, "query_pre_attn_scalar": 200, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 8.0,
    },
    "gemma3": {
        "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True,
        "sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 10,
    },
}  # fmt: skip
# Adapters of experts are not the native engine's.
DENSE = {kind: config for kind, config in CONFIGS.items() if "num_experts_per_tok" not in config}
# One of them for each model_type; of Llama, the one with biases.
FAMILIES = {config["model_type"]: config for config in CONFIGS.values()}
