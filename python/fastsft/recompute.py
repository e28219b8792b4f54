"""What the backward pass computes again, chosen by the bytes of activations beside the state of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Parameters, gradient and two moments, 4 bytes each (bf16 compute adds 2 and is not worth a rule of its own).
_STATE_BYTES = 16
# Above this share of the state, the gate and up projections are made again: about a seventh of a block's work
# for nearly half of its activations.
_LARGE_SHARE = 0.25


def choose_recompute(config: Mapping[str, Any], num_parameters: int, tokens: int, itemsize: int) -> str:
    """`selective` or `gate_up` for micro-batches of `tokens` tokens; `itemsize` bytes an activation."""
    large = activation_bytes(config, tokens, itemsize) > _LARGE_SHARE * _STATE_BYTES * num_parameters
    return "gate_up" if large else "selective"


def activation_bytes(config: Mapping[str, Any], tokens: int, itemsize: int) -> int:
    """What `selective` keeps of all blocks: stream, fused qkv, attention's result, stream, gate and up."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    row = 2 * hidden + (2 * heads + 2 * kv_heads) * head_dim + 2 * config["intermediate_size"]
    return int(config["num_hidden_layers"] * tokens * row * itemsize)
