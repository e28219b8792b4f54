"""Two steps of an engine with torch's CPU allocator metered, next to the plan of the same run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines import new_engine, planned_bytes, train_step
from fastsft import _C
from ranks import run_ranks

_BASE = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 192, "intermediate_size": 512,
    "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 6, "rms_norm_eps": 1e-5,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "untied": _BASE,
    "tied, grouped heads": {**_BASE, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "wide heads, narrow MLP": {**_BASE, "head_dim": 64, "intermediate_size": 256, "num_hidden_layers": 10},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {**_BASE, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 48},
    "qwen2": {**_BASE, "model_type": "qwen2", "num_key_value_heads": 2},
    "qwen3_moe": {
        **_BASE,
        "model_type": "qwen3_moe",
        "num_key_value_heads": 2,
        "head_dim": 48,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
    },
    "phi3": {**_BASE, "model_type": "phi3", "num_key_value_heads": 2},
    "gemma2": {**_BASE, "model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 48},
    "gemma3": {**_BASE, "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 48},
}


@dataclass(frozen=True)
class MemoryRun:
    """One cell of the table."""

    model: str = "untied"
    strategy: str = "no_shard"
    recompute: str = "selective"
    dtype: str = "float32"
    ranks: int = 1
    tokens: int = 1024
    node_size: int = 0
    grad_dtype: str = "float32"
    optim_dtype: str = "float32"
    master_dtype: str = "float32"
    offload: bool = False
    rank: int = 0  # of adapters on all linears; 0: everything is trained
    frozen_dtype: str = "compute"
    optimizer: str = "adamw"
    sync_each_batch: bool = True
    tile_tokens: int = 0
    offload_inputs: bool = False
    fp8: str = "none"
    keep_fp8_weights: bool = False
    context_ranks: int = 1  # that share the tokens

    def config(self) -> str:
        return json.dumps({**MODELS, **FAMILIES}[self.model])

    def shared(self) -> dict[str, Any]:
        """What an engine and a plan are told alike."""
        return {
            "strategy": self.strategy, "recompute": self.recompute, "compute_dtype": self.dtype,
            "grad_dtype": self.grad_dtype, "optim_dtype": self.optim_dtype, "master_dtype": self.master_dtype,
            "offload": self.offload, "optimizer": self.optimizer, "frozen_dtype": self.frozen_dtype,
            "adapters": self.adapters(), "sync_each_batch": self.sync_each_batch,
            "tile_tokens": self.tile_tokens, "offload_inputs": self.offload_inputs,
            "fp8": self.fp8, "keep_fp8_weights": self.keep_fp8_weights,
            "context_parallel_size": self.context_ranks,
        }  # fmt: skip

    def adapters(self) -> _C.AdapterOptions:
        names = ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"]
        if "num_experts_per_tok" in json.loads(self.config()):
            names = names[:3]  # experts have none
        if self.model == "phi3":
            names = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
        layers = json.loads(self.config())["num_hidden_layers"] if self.rank else 0
        modules = [f"model.layers.{layer}.{name}" for layer in range(layers) for name in names]
        linears = [_C.AdapterLinear(module, rank=self.rank, scale=2.0) for module in modules]
        return _C.AdapterOptions(linears=linears)


def _data(tokens: int) -> _C.TokenDataset:
    """Two micro-batches of `tokens` computed tokens in four conversations; half of them are learned."""
    dataset, length = _C.TokenDataset(), tokens // 4
    for row in range(8):
        ids = (np.arange(length + 1, dtype=np.int32) * (row + 3)) % 1000
        dataset.append(ids, [(length // 2 + 1, length + 1)])
    return dataset


def _metered(groups: dict[str, str], run: MemoryRun) -> dict[str, Any]:
    dataset, threads = _data(run.tokens), 1
    micro_batches = [np.arange(0, 4), np.arange(4, 8)]
    weights = [np.full(4, 1e-4)] * 2
    _C.AllocationMeter.start()
    engine = new_engine(
        run.config(), num_threads=threads, max_positions=run.tokens // 4, **run.shared(), **groups
    )
    tokens = run.tokens // run.context_ranks
    sizes = {
        "micro_batch": (tokens, tokens // 2, run.tokens // 4),
        "step": (2 * tokens, tokens, 2),
    }
    engine.reserve(**sizes)
    for _ in range(2):
        train_step(engine, dataset, micro_batches, weights, learning_rate=1e-4)
    measured, memory = _C.AllocationMeter.peak(), engine.memory()
    _C.AllocationMeter.stop()
    plan = planned_bytes(
        run.config(), world_size=run.ranks, node_size=run.node_size, threads=threads,
        **sizes, **run.shared(),
    )  # fmt: skip
    return {"measured": measured, "held": memory, "plan": {"parts": plan.parts, "peak": plan.peak}}


def measure(run: MemoryRun) -> dict[str, Any]:
    """The rank that took most: its peak, what it says it holds, and the plan."""
    return max(
        run_ranks(run.ranks, _metered, run, node_size=run.node_size, context_size=run.context_ranks),
        key=lambda result: result["measured"],
    )
