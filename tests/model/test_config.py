"""What a config.json may say, by family: read as transformers reads it, or refused by the field's name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from fastsft import _C

SIZES = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 6,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

GEMMA, WITH_HEAD_DIM = ("gemma2", "gemma3_text"), ("phi3", "qwen2", "qwen3", "qwen3_moe")
# With a null in these fields transformers fails, where it would have a default for an absent field.
NULLS = [
    *((family, field) for family in _C.model_families() for field in ("rms_norm_eps", "rope_theta")),
    *((family, "hidden_activation" if family in GEMMA else "hidden_act") for family in _C.model_families()),
    *((family, "head_dim") for family in (*GEMMA, *WITH_HEAD_DIM)),
    *((family, "num_key_value_heads") for family in (*GEMMA, "qwen3_moe")),
    ("qwen3_moe", "num_experts"),
]


def config(family: str, **changes: Any) -> dict[str, Any]:
    """Without the keys that are set to `...`."""
    fields = {"model_type": family, **SIZES, **changes}
    return {key: value for key, value in fields.items() if value is not ...}


def logits(fields: dict[str, Any], length: int = 30) -> torch.Tensor:
    """Of random weights, equal for equal shapes."""
    engine, generator = _C.Engine(json.dumps(fields)), torch.Generator().manual_seed(0)
    for name, shape in _C.parameter_shapes(json.dumps(fields)):
        engine.set_parameter(name, 0.3 * torch.randn(shape, generator=generator))
    engine.publish()
    return engine.logits(np.arange(length) % 40, np.array([length]))


@pytest.mark.parametrize("family", _C.model_families())
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": ...},
        {"num_key_value_heads": None},
        {"head_dim": ...},
        {"head_dim": None},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"tie_word_embeddings": True},
    ],
    ids=str,
)
def test_tensors_are_those_of_transformers(family: str, changes: dict[str, Any]) -> None:
    """Also when a key is absent, where every family has its own default."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if any((family, name) in NULLS for name, value in changes.items() if value is None):
        with pytest.raises(ValueError, match=next(iter(changes))):
            _C.parameter_shapes(json.dumps(config(family, **changes)))
        return
    fields = config(family, **changes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    expected = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    assert dict(_C.parameter_shapes(json.dumps(fields))) == expected
    assert _C.count_parameters(json.dumps(fields)) == model.num_parameters()


@pytest.mark.parametrize("family, field", NULLS)
def test_nulls_that_transformers_cannot_compute(family: str, field: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = config(family, **{field: None})
    with pytest.raises((TypeError, KeyError)):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).eval()
        model(input_ids=torch.arange(5)[None])
    with pytest.raises(ValueError, match=f'"{field}" is null, expected a value: .* leave the field out'):
        _C.count_parameters(json.dumps(fields))


@pytest.mark.parametrize("family", [name for name in _C.model_families() if name != "gemma3_text"])
def test_both_spellings_of_rope_mean_the_same(family: str) -> None:
    old = config(family, rope_theta=500.0, rope_scaling=LLAMA3)
    new = config(family, rope_parameters={"rope_theta": 500.0, **LLAMA3})
    older = config(family, rope_theta=500.0, rope_scaling={**LLAMA3, "rope_type": ..., "type": "llama3"})
    older["rope_scaling"].pop("rope_type")
    assert torch.equal(logits(old), logits(new)) and torch.equal(logits(old), logits(older))
    assert not torch.equal(logits(old), logits(config(family, rope_theta=500.0)))


def test_gemma_has_a_rotation_for_each_kind_of_layer() -> None:
    """transformers 5 writes both into rope_parameters."""
    sizes = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    linear = {"rope_type": "linear", "factor": 8.0}
    older = config("gemma3_text", **sizes, rope_theta=500.0, rope_local_base_freq=20.0, rope_scaling=linear)
    both = {
        "full_attention": {**linear, "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    }
    newer = config("gemma3_text", **sizes, rope_parameters=both)
    assert torch.equal(logits(older), logits(newer))
    assert not torch.equal(logits(older), logits({**older, "rope_local_base_freq": 30.0}))
    assert not torch.equal(logits(older), logits({**older, "rope_theta": 30.0}))


@pytest.mark.parametrize("others", range(24))
def test_rotations_of_gemma_among_any_number_of_fields(others: int) -> None:
    """The fields that are put in their place may move all others in memory."""
    both = {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    }
    more = {f"another_field_{at}": at for at in range(others)}
    newer = config("gemma3_text", sliding_window=5, rope_parameters=both)
    assert torch.equal(logits(newer), logits({**more, **newer}))


def test_windows_are_read_by_family() -> None:
    plain = logits(config("mistral", sliding_window=None))
    assert torch.equal(plain, logits(config("mistral")))  # the default, 4096, is longer than the text
    assert not torch.equal(plain, logits(config("mistral", sliding_window=5)))
    for family in ("qwen2", "qwen3"):
        off = logits(config(family, sliding_window=5, max_window_layers=1))
        on = logits(config(family, sliding_window=5, max_window_layers=1, use_sliding_window=True))
        types = ["full_attention", "sliding_attention", "sliding_attention"]
        listed = config(family, sliding_window=5, layer_types=types, use_sliding_window=True)
        all_full = config(family, sliding_window=5, max_window_layers=3, use_sliding_window=True)
        assert not torch.equal(off, on) and torch.equal(on, logits(listed))
        assert torch.equal(off, logits(all_full))


SLIDING = {"use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    "family,change,message",
    [
        ("gpt2", {}, 'unknown model family "gpt2"; known: gemma2, gemma3_text, llama, mistral, mixtral'),
        ("llama", {"hidden_size": None}, 'config.json: "hidden_size" is missing'),
        ("llama", {"attention_bias": 1}, '"attention_bias" is 1, expected true or false'),
        ("llama", {"hidden_act": "gelu"}, '"hidden_act" is "gelu"; this model family is built for "silu": '),
        ("llama", {"num_key_value_heads": 3}, "not a multiple of 3"),
        ("llama", {"head_dim": 7}, "head_dim is 7, expected an even number"),
        ("llama", {"tie_word_embeddings": "no"}, '"tie_word_embeddings" is "no", expected true or false'),
        ("llama", {"vocab_size": -1}, '"vocab_size" is -1, expected a positive integer'),
        ("llama", {"vocab_size": 1 << 31}, '"vocab_size" is 2147483648, expected a positive integer below'),
        ("llama", {"hidden_size": (1 << 64) - 1}, "expected a positive integer below"),
        ("llama", {"num_hidden_layers": 100_001}, '"num_hidden_layers" is 100001, expected at most 100000'),
        ("qwen2", {"max_window_layers": 1e300}, '"max_window_layers" is 1e.300, expected 0 or more'),
        ("llama", {"partial_rotary_factor": 0.5}, '"partial_rotary_factor" is 0.5; .* built for 1.0'),
        ("llama", {"rope_theta": 0}, '"rope_theta" is 0, expected a positive number'),
        ("llama", {"rope_scaling": []}, r'"rope_scaling" is \[\], expected an object'),
        ("llama", {"rope_scaling": {"rope_type": 3}}, '"rope_scaling": "rope_type" is 3, expected a text'),
        ("llama", {"rope_scaling": {"factor": 2.0}}, '"rope_scaling" has type ""; supported'),
        ("llama", {"rope_scaling": {"type": "linear"}}, '"rope_scaling": "factor" is missing'),
        (
            "qwen2",
            {"rope_scaling": {"rope_type": "mrope", "factor": 4.0}},
            '"rope_scaling" has type "mrope"; supported: default, dynamic, linear, llama3, longrope, yarn. '
            'Without "rope_scaling"',
        ),
        ("mistral", {"rope_scaling": {"type": "dynamic"}}, '"factor" is missing'),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, '"long_factor" is null, expected a list'),
        (
            "llama",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "expected one setting for all layers",
        ),
        ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, '"low_freq_factor" is missing'),
        ("llama", {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, '"high_freq_factor" is 1, expect'),
        ("mistral", {"sliding_window": 0}, '"sliding_window" is 0, expected a positive integer'),
        ("mistral", {"layer_types": ["full_attention"]}, '"layer_types" is .*built for null'),
        ("qwen2", {"layer_types": ["full_attention"]}, '"layer_types" is .*expected a list of 3 texts'),
        ("qwen2", {**SLIDING, "layer_types": ["full_attention"] * 2 + ["x"]}, '"layer_types" holds "x", exp'),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, '"use_sliding_window" is false'),
        ("qwen3", {**SLIDING, "max_window_layers": -1}, '"max_window_layers" is -1, expected 0 or more'),
        ("gemma2", {"hidden_activation": "gelu"}, '"hidden_activation" is "gelu"; .*for "gelu_pytorch_t'),
        ("gemma2", {"query_pre_attn_scalar": 0}, '"query_pre_attn_scalar" is 0, expected a positive number'),
        ("gemma2", {"attn_logit_softcapping": -1}, '"attn_logit_softcapping" is -1, expected a positive'),
        ("gemma2", {"sliding_window": None}, '"sliding_window" is missing'),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, '"attn_logit_softcapping" is 50.0; .* for null'),
        ("gemma3_text", {"use_bidirectional_attention": True}, '"use_bidirectional_attention" is true'),
        ("gemma3_text", {"sliding_window_pattern": 0}, '"sliding_window_pattern" is 0, expected a positive'),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1e4}}, '"full_attention" is missing'),
    ],
)  # fmt: skip
def test_what_would_be_computed_differently_is_refused(
    family: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _C.Engine(json.dumps(config(family, **change)))
