"""Tiny models of transformers' families whose rows pass every switch of their classes, next to the engine.

A class decides by sizes of its configuration: windows, chunks, blocks, floors. Two configurations differ in
these alone: with large ones, as models are published, the engine decides whether it packs; small ones, which
rows of a few tokens pass, show that this was right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig

from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.packing_trial import why_padded
from generic_engines import (
    Rows,
    by_files,
    dataset_of,
    generic_engine,
    library_loss,
    library_model,
    random_rows,
)

LENGTHS = [37, 16, 45]  # each beyond every small switch; only together beyond 64 positions
_WEIGHT = 1 / 90
# The most a size may be, by its name, and the value that a switch has so that the rows pass it.
_SIZES = {
    "vocab_size": 96, "hidden_size": 32, "n_embd": 32, "d_model": 32, "intermediate_size": 48, "ffn_dim": 48,
    "dff": 48, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64,
    "original_max_position_embeddings": 64, "rotary_dim": 4, "word_embed_proj_dim": 32,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "shared_intermediate_size": 32,
    "dense_intermediate_size": 48, "intermediate_size_mlp": 48, "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 8, "laurel_rank": 8, "q_lora_rank": 16, "kv_lora_rank": 8,
    "index_n_heads": 16, "index_head_dim": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "qk_head_dim": 16, "v_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_heads": 4, "linear_head_dim": 8,
    "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "mamba_dt_rank": 4,
    "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2,
    "moe_shared_expert_intermediate_size": 16, "state_size": 8, "time_step_rank": 4, "kv_channels": 8,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "lru_width": 32,
    "kv_n_heads": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "zero_expert_num": 2,
}  # fmt: skip
SWITCHES = {
    "sliding_window": 6, "attention_chunk_size": 7, "floor_scale": 5, "index_topk": 6, "index_topk_blocks": 2,
    "index_block_size": 4, "local_attention": 8, "window_size": 6, "keep_window_size": 6, "chunk_size": 8,
    "mamba_chunk_size": 8, "block_size": 8, "sliding_window_size": 6, "log_scaling_n_floor": 5,
    "rel_extent": 6, "attention_window_size": 6, "original_max_position_embeddings": 16,
}  # fmt: skip
_LINEAR = ["full_attention"] * 8 + ["linear_attention"]
_IS_NEWER = int(transformers.__version__.split(".")[0]) >= 5
_WITH_STATE = ["linear_attention", "full_attention"] if _IS_NEWER else ["mamba", "attention"]
_MLA = {"head_dim": 8, "num_key_value_heads": 4}
_EXPERTS = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
# Settings that a class needs, or by which it has each kind of its layers.
SETTINGS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"layer_types": _LINEAR, "num_hidden_layers": 9},
    "qwen3_5_moe_text": {"layer_types": _LINEAR, "num_hidden_layers": 9},
    "qwen3_next": {"layer_types": _LINEAR, "num_hidden_layers": 9},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"],
        "num_hidden_layers": 2, "index_n_heads": 2,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention"], "full_attn_idxs": [1], "num_hidden_layers": 2,
        "block_auto_adjust_ff_dim": False,
    },
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "moe_layers": [1],
        "num_hidden_layers": 2,
    },
    "gemma3n_text": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4, "use_mamba_kernels": False,
    },
    "granitemoehybrid": {"layer_types": _WITH_STATE, "num_hidden_layers": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "gpt_neo": {
        "num_layers": 2, "attention_types": [[["global", "local"], 1]],
        "attention_layers": ["global", "local"],
    },
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1,
    },
    "kimi_linear": {**_MLA, "num_experts": 4, "num_experts_per_token": 2},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "dots1": {**_EXPERTS, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    "deepseek_v2": {**_MLA, **_EXPERTS},
    "deepseek_v3": {**_MLA, **_EXPERTS},
    "deepseek_v32": {**_MLA, **_EXPERTS},
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 2},
}  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


@dataclass(frozen=True)
class Outcome:
    """A family's numbers. why: its rows are padded; None where they are packed, whose numbers follow.

    Differences are relative to transformers: `loss` and `norm` to its padded batch, the packed ones to the
    sum over calls with each conversation alone.
    """

    why: str | None
    loss: float
    norm: float
    packed_loss: float = 0.0
    packed_norm: float = 0.0

    @property
    def worst(self) -> float:
        """The largest of the differences; infinite for numbers that are none."""
        found = (self.loss, self.norm, self.packed_loss, self.packed_norm)
        return max(found) if all(map(math.isfinite, found)) else math.inf


def published(kind: str) -> dict[str, Any]:
    """A tiny configuration of the family with the switches of its class, and a layer of each kind."""
    given = SETTINGS.get(kind, {})
    return {**_of_first_layers(_tiny(AutoConfig.for_model(kind).to_dict())), **given}


def passed(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with switches that the rows pass."""
    made = {name: passed(value) if isinstance(value, Mapping) else value for name, value in config.items()}
    return {name: min(SWITCHES[name], value) if _is_size(value) and name in SWITCHES else value
            for name, value in made.items()}  # fmt: skip


def compare(kind: str) -> Outcome:
    """The engine next to transformers; ValueError for a family that fastsft refuses."""
    large = published(kind)
    why = why_padded(lambda config: empty_model(config, torch.float32), empty_model(large, torch.float32))
    own = ("model_type", "transformers_version")
    small = {name: value for name, value in passed(large).items() if name not in own}
    model, rows = library_model(kind, **small).train(), random_rows(LENGTHS)
    loss, norm = _of_engine(model, rows, packs=False)
    outcome = Outcome(why, *_differences((loss, norm), _of_library(model, [rows])))
    if why is not None:
        return outcome
    found = _of_engine(model, rows, packs=True)
    alone = _differences(found, _of_library(model, [[row] for row in rows]))
    return Outcome(why, outcome.loss, outcome.norm, *alone)


def _tiny(config: Mapping[str, Any]) -> dict[str, Any]:
    made = {
        name: _tiny(value) if isinstance(value, Mapping) else _at_most(name, value)
        for name, value in config.items()
        if name not in ("id2label", "label2id")
    }
    if "vocab_size" in made:
        made |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    heads = config.get("num_attention_heads")
    if heads is not None and config.get("num_key_value_heads") == heads:
        made["num_key_value_heads"] = made["num_attention_heads"]
    return {
        name: 0.0 if ("drop" in name or "jitter" in name) and _is_size(value) else value
        for name, value in made.items()
    }


def _at_most(name: str, value: Any) -> Any:
    if isinstance(value, list) and name in _SIZES:
        return [_at_most(name, each) for each in value]
    return min(value, _SIZES[name]) if _is_size(value) and name in _SIZES else value


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_first_layers(config: dict[str, Any]) -> dict[str, Any]:
    """The first layer of each kind, by the lists with an entry a layer; four layers where there are none."""
    count = next((config[name] for name in _LAYERS if isinstance(config.get(name), int)), None)
    if count is None:
        return config
    lists = {name: value for name, value in config.items() if isinstance(value, list) and len(value) == count}
    kinds = [str([value[at] for value in lists.values()]) for at in range(count)]
    chosen = sorted({kinds.index(kind) for kind in kinds})[:8]
    chosen = chosen if len(chosen) > 1 else list(range(min(count, 4)))
    cut: dict[str, Any] = {name: [value[at] for at in chosen] for name, value in lists.items()}
    for name, value in config.items():
        if isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
            own = {int(key): each for key, each in value.items()}
            cut[name] = {str(new): own[at] for new, at in enumerate(chosen) if at in own}
    return {**config, **cut, **{name: len(chosen) for name in _LAYERS if name in config}}


def _differences(found: tuple[float, float], expected: tuple[float, float]) -> Iterator[float]:
    return (abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def _of_engine(model: Any, rows: Rows, *, packs: bool) -> tuple[float, float]:
    """Loss of the rows, and norm of all gradients."""
    count = len(rows)
    engine = generic_engine(model, packs=packs)
    loss, gradients = engine.gradients(dataset_of(rows), np.arange(count), np.full(count, _WEIGHT))
    return float(loss), _norm(gradients)


def _of_library(model: Any, batches: list[Rows]) -> tuple[float, float]:
    """As `_of_engine`'s, by transformers; a call for each batch."""
    model.zero_grad()
    total = 0.0
    for rows in batches:
        loss = _library_loss(model, rows)
        loss.backward()
        total += loss.item()
    gradients = {
        name: torch.zeros_like(each) if each.grad is None else each.grad
        for name, each in model.named_parameters()
        if each.requires_grad
    }
    return total, _norm(by_files(model, gradients))


def _library_loss(model: Any, rows: Rows) -> torch.Tensor:
    """The mean of the rows' labels, which every class returns, times their weights."""
    count = sum(end - begin for _, (begin, end) in rows)
    return library_loss(model, rows, 1 / count) * (count * _WEIGHT)


def _norm(gradients: Mapping[str, torch.Tensor]) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in gradients.values()))
