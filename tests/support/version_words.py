"""Rotations of small configurations in the words of transformers 4 and 5, read by the other release.

tests/golden/versions/record.py writes them into words.json: for each family and type the words of
transformers 5, its reading of them, and its reading of the file that fastsft makes of the older words. A
change of those files asks for a new recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "versions" / "words.json"
THETA, LOCAL_THETA = 50_000.0, 2_000.0
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MLA = {
    "n_routed_experts": 4, "n_shared_experts": 1, "kv_lora_rank": 8, "q_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 16, "num_experts_per_tok": 2,
}  # fmt: skip
_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
# Families that both releases have, with a rotation by the common functions; with what else they need.
_DENSE = (
    "llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "granite", "olmo", "olmo2", "cohere",
    "cohere2", "helium", "starcoder2", "smollm3", "seed_oss", "arcee", "ernie4_5", "exaone4", "diffllama",
    "apertus", "bitnet", "hunyuan_v1_dense", "phi", "stablelm", "persimmon", "glm", "glm4", "nemotron",
    "gpt_neox", "gpt_neox_japanese", "phi3",
)  # fmt: skip
_SPARSE = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "flex_olmo")
FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {} for family in _DENSE},
    **dict.fromkeys(_SPARSE, _EXPERTS),
    "gpt_oss": {**_EXPERTS, **_KINDS},
    "deepseek_v3": {**_MLA, "head_dim": 8},
    "dots1": _MLA,
    "glm4_moe": _MLA,
    "gemma2": {"query_pre_attn_scalar": 8},
    "gemma3_text": {**_KINDS, "query_pre_attn_scalar": 8},
    "gemma3n_text": {
        **_KINDS, "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 64, "laurel_rank": 4,
        "hidden_size_per_layer_input": 8, "altup_num_inputs": 2, "intermediate_size": [48, 48],
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "olmo3": _KINDS,
    "modernbert-decoder": {**_KINDS, "local_attention": 16, "cls_token_id": 1, "sep_token_id": 2},
}  # fmt: skip
PARTIAL = ("phi", "stablelm", "persimmon", "glm", "glm4", "glm4_moe", "nemotron", "gpt_neox", "phi3")
_EVERY = (
    "llama", "phi", "phi3", "olmo", "gpt_oss", "gemma3_text", "gemma3n_text", "olmo3", "modernbert-decoder",
)  # fmt: skip
_TWO_KEYS = ("olmo", "olmo2")


def scalings(pairs: int) -> dict[str, dict[str, Any]]:
    """Of each type, as rope_scaling has it."""
    short, long = ([start + 0.1 * i for i in range(pairs)] for start in (1.0, 2.0))
    return {
        "default": {},
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 4.0},
        "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8},
        "longrope": {
            "rope_type": "longrope", "factor": 3.0, "short_factor": short, "long_factor": long,
            "original_max_position_embeddings": 32,
        },
        "llama3": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    }  # fmt: skip


def cases() -> Iterator[tuple[str, str, str, float | None]]:
    """(name, family, type, rotated part; None: the whole without a word).

    All types of the families in `_EVERY`; of others the default and one more, in turn.
    """
    types = list(scalings(4))
    for number, family in enumerate(FAMILIES):
        for part in (0.5, 1.0) if family in PARTIAL else (None,):
            chosen = types if family in _EVERY else ["default", types[1 + number % 5]]
            for kind in (each for each in chosen if each not in _lacking(family)):
                yield f"{family} {kind}" + (f" {part}" if part else ""), family, kind, part


def _lacking(family: str) -> tuple[str, ...]:
    """Types that a class of transformers 4 or 5 refuses, or reads past."""
    if family == "phi3":
        return ("linear", "dynamic", "yarn", "llama3")
    if family in _TWO_KEYS:
        return ("yarn", "longrope", "llama3")
    if family == "nemotron":
        return ("linear", "yarn", "dynamic", "longrope", "llama3")
    return ("dynamic",) if family.startswith("hunyuan") else ()


def older(family: str, kind: str, part: float | None) -> dict[str, Any]:
    """A config.json in the words of transformers 4."""
    scaling = scalings(_pairs(family, part))[kind] or None
    neox = family.startswith("gpt_neox")
    theta = {"modernbert-decoder": "global_rope_theta"}.get(
        family, "rotary_emb_base" if neox else "rope_theta"
    )
    words: dict[str, Any] = {theta: THETA, "rope_scaling": scaling}
    if family == "modernbert-decoder":
        words["local_rope_theta"] = THETA
    if family.startswith("gemma3"):
        words["rope_local_base_freq"] = LOCAL_THETA
    if part is not None:
        words["rotary_pct" if neox else "partial_rotary_factor"] = part
    if scaling and (family in _TWO_KEYS or family == "phi3"):
        keys = ("factor",) if family in _TWO_KEYS else ("short_factor", "long_factor")
        words["rope_scaling"] = {"type": kind, **{key: scaling[key] for key in keys}}
    return {"model_type": family, **SIZES, **FAMILIES[family], **_above(family), **words}


def newer(family: str, kind: str, part: float | None) -> dict[str, Any]:
    """A config.json in the words of transformers 5."""
    whole = {"rope_type": "default", **scalings(_pairs(family, part))[kind], "rope_theta": THETA}
    if family == "phi3":
        whole.pop("factor", None)
    if part is not None:
        whole["partial_rotary_factor"] = part
    rope: dict[str, Any] = whole
    if family in ("gemma3_text", "gemma3n_text", "olmo3", "modernbert-decoder"):
        theta = LOCAL_THETA if family.startswith("gemma3") else THETA
        local = {"rope_type": "default", "rope_theta": theta}
        rope = {"full_attention": whole, "sliding_attention": dict(whole) if "bert" in family else local}
    words = {"rope_parameters": rope}
    return {"model_type": family, **SIZES, **FAMILIES[family], **_above(family), **words}


def _above(family: str) -> dict[str, Any]:
    return {"original_max_position_embeddings": 32} if family == "phi3" else {}


def _pairs(family: str, part: float | None) -> int:
    return int(8 * (part or 1.0)) // 2


def reading(config: dict[str, Any]) -> list[list[float]]:
    """Rotations of the installed transformers: of each the scale, then frequencies, of short and long rows.

    Sorted, each once: releases name their modules otherwise.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from fastsft.model.generic.empty_model import empty_of

    plain = {key: value for key, value in json.loads(json.dumps(config)).items() if key != "model_type"}
    made = AutoConfig.for_model(config["model_type"], **plain)
    model = empty_of(lambda: AutoModelForCausalLM.from_config(made, dtype=torch.float32), "transformers")
    found = set()
    for module in model.modules():
        if not type(module).__name__.endswith("RotaryEmbedding"):
            continue
        for length in (12, 60, 100):
            for arguments in _calls(module):
                position = torch.arange(length)[None]
                cosine, sine = module(torch.zeros(1, 1, 8), position, *arguments)
                row = torch.cat([cosine[0, 11], sine[0, 11], cosine[0, -1], sine[0, -1]])
                found.add(tuple(round(float(value), 5) for value in row))
    return sorted(map(list, found))


def _calls(module: Any) -> list[tuple[str, ...]]:
    kinds = getattr(module, "layer_types", None)
    return [(kind,) for kind in sorted(set(kinds))] if kinds else [()]


def record() -> dict[str, Any]:
    """Return what transformers 5, which must be installed, reads of each case."""
    from fastsft.model.config_words import in_both_words

    found = {}
    for name, family, kind, part in cases():
        before, after = older(family, kind, part), newer(family, kind, part)
        found[name] = {
            "newer": reading(after), "older": reading(in_both_words_of_older_release(before)),
            "both": reading(in_both_words(after)),
        }  # fmt: skip
    return found


def in_both_words_of_older_release(config: dict[str, Any]) -> dict[str, Any]:
    """The file that fastsft makes of older words next to transformers 4."""
    from unittest import mock

    from fastsft.model import config_words, rope_words

    with (
        mock.patch.object(config_words, "library_major", lambda: 4),
        mock.patch.object(rope_words, "library_major", lambda: 4),
    ):
        return config_words.in_both_words(config)
