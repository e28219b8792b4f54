"""The generic engine against transformers: loss and every gradient, architecture by architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from generic_engines import (
    VOCAB,
    by_files,
    dataset_of,
    generic_engine,
    library_loss,
    library_model,
    random_rows,
    why_rows_are_padded,
)  # fmt: skip

SMALL = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HIDDEN = {
    **SMALL,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
WIDE = {**HIDDEN, "intermediate_size": 48}
GROUPED = {**WIDE, "num_key_value_heads": 2}
OPT = {**HIDDEN, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, "init_std": 0.2}
GPT2 = {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
GEMMA = {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
# What is special about each.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "opt: learned positions": ("opt", OPT),
    "opt: embedding projected": ("opt", {**OPT, "word_embed_proj_dim": 16}),
    "gpt2: Conv1D, tied": ("gpt2", GPT2),
    "gpt_neo: local layers": ("gpt_neo", {
        **WIDE, "num_layers": 2, "num_heads": 4, "window_size": 4,
        "attention_types": [[["global", "local"], 1]],
    }),
    "gpt_neox: parallel, partial rope, untied": ("gpt_neox", {**WIDE, "rotary_pct": 0.5}),
    "gptj: head with bias": ("gptj", {**GPT2, "rotary_dim": 4, "attn_pdrop": 0.0}),
    "bloom: ALiBi": ("bloom", {**SMALL, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt: ALiBi without biases": ("mpt", {
        **SMALL, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64,
    }),
    "falcon: multi-query, parallel": ("falcon", {**HIDDEN, "multi_query": True, "parallel_attn": True}),
    "falcon: ALiBi": ("falcon", {**HIDDEN, "alibi": True, "multi_query": False, "parallel_attn": False}),
    "gpt_bigcode: multi-query": ("gpt_bigcode", GPT2),
    "phi: partial rope, head with bias": ("phi", GROUPED),
    "phi3: fused projections": ("phi3", GROUPED),
    "gemma: scaled embedding": ("gemma", {**GROUPED, "head_dim": 8}),
    "gemma2: soft caps": ("gemma2", GEMMA),
    "gemma3_text: local rope": ("gemma3_text", GEMMA),
    "mixtral: experts": ("mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe: shared expert": ("qwen2_moe", {
        **GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    }),
    "olmo2: norms after": ("olmo2", GROUPED),
    "granite: scaled logits": ("granite", {**GROUPED, "logits_scaling": 2.0, "embedding_multiplier": 3.0}),
    "cohere: parallel, scaled logits, tied": ("cohere", GROUPED),
    "stablelm: partial rope": ("stablelm", GROUPED),
    "deepseek_v2: shared experts, low-rank keys": ("deepseek_v2", {
        **WIDE, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1,
        "moe_intermediate_size": 16, "num_experts_per_tok": 2,
        "kv_lora_rank": 8, "q_lora_rank": None, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    }),
    "deepseek_v3: a buffer that is saved": ("deepseek_v3", {
        **WIDE, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1,
        "moe_intermediate_size": 16, "num_experts_per_tok": 2, "kv_lora_rank": 8, "q_lora_rank": 16,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1,
        "n_group": 2, "topk_group": 1,
    }),
    "glm4_moe: a buffer that is saved": ("glm4_moe", {
        **GROUPED, "head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 16,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    }),
    "ernie4_5_moe: a frozen parameter": ("ernie4_5_moe", {
        **GROUPED, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    }),
    "apertus: buffers of one element": ("apertus", GROUPED),
    "persimmon: squared relu, norms of queries": ("persimmon", WIDE),
    "qwen3_moe: norms of queries, experts": ("qwen3_moe", {
        **GROUPED, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    }),
    "olmoe: experts": ("olmoe", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "cohere2: layers without positions": ("cohere2", {**GROUPED, "sliding_window": 4}),
    "smollm3: layers without positions": ("smollm3", GROUPED),
    "glm4: norms around, partial rope": ("glm4", {**GROUPED, "head_dim": 8, "partial_rotary_factor": 0.5}),
    "nemotron: shifted norms, squared relu": ("nemotron", {**GROUPED, "head_dim": 8}),
    "codegen: parallel, interleaved projections": ("codegen", {**GPT2, "rotary_dim": 4}),
    "olmo: norms without weights": ("olmo", GROUPED),
    "gpt_oss: attention sinks": ("gpt_oss", {
        **GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4,
    }),
    "starcoder2: biases": ("starcoder2", {**GROUPED, "residual_dropout": 0.0, "embedding_dropout": 0.0}),
}  # fmt: skip


# Conversations of these are one row; those with ALiBi need padded rows by their nature.
PACKED = ("gpt2", "gpt_neox", "gemma2", "gemma3_text", "mixtral", "phi3", "deepseek_v2", "gpt_oss")
PADDED = ("bloom", "mpt", "opt")


@pytest.fixture(params=list(ARCHITECTURES))
def model(request: pytest.FixtureRequest) -> Any:
    model_type, settings = ARCHITECTURES[request.param]
    return library_model(model_type, **settings).train()


@pytest.mark.covering
@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_gradients(model: Any, recompute: bool) -> None:
    """Of padded rows, and of one row where the model is trained so."""
    rows, weight = random_rows([9, 5, 12]), 0.05
    theirs = library_loss(model, rows, weight)
    theirs.backward()
    for packs in (False, True) if why_rows_are_padded(model) is None else (False,):
        engine = generic_engine(model, recompute=recompute, packs=packs)
        loss, gradients = engine.gradients(dataset_of(rows), np.arange(3), np.full(3, weight))
        assert loss == pytest.approx(theirs.item(), rel=1e-6)
        wanted = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        for name, expected in by_files(model, wanted).items():
            scale = max(expected.abs().max().item(), 1e-3)
            assert (gradients[name] - expected).abs().max().item() < 2e-5 * scale, (name, packs)
        alone = engine.loss(dataset_of(rows), np.arange(3), np.full(3, weight))
        assert alone == pytest.approx(loss, rel=1e-6)


def test_which_models_are_padded(model: Any) -> None:
    kind, why = model.config.model_type, why_rows_are_padded(model)
    if kind in PACKED or kind in PADDED:
        assert (why is None) == (kind in PACKED), why
