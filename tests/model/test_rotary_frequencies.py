"""Frequencies and scale of rotary embeddings against transformers' module, and up to where they hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from fastsft import _C
from fastsft.model.generic.empty_model import empty_model

HEAD_DIM = 16
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
FACTORS = {"short_factor": [1 + 0.1 * i for i in range(8)], "long_factor": [2.0**i for i in range(8)]}
LONGROPE = {"rope_type": "longrope", **FACTORS}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 500.0},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.5}},
    "yarn": {"rope_scaling": YARN},
    "yarn, positions of the model": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
    "yarn, as long as trained": {"rope_scaling": {**YARN, "factor": 1.0}},
    "yarn, of Qwen": {
        "rope_scaling": {**YARN, "factor": 4.0, "original_max_position_embeddings": 32768},
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
    },
    "yarn, betas": {"rope_scaling": {**YARN, "beta_fast": 6.0, "beta_slow": 2.0}},
    "yarn, betas of zero": {"rope_scaling": {**YARN, "beta_fast": 0, "beta_slow": 0}},
    "yarn, one pair": {"rope_scaling": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False}},
    "yarn, not truncated": {"rope_scaling": {**YARN, "truncate": False}, "rope_theta": 300.0},
    "yarn, mscale": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}},
    "yarn, one mscale": {"rope_scaling": {**YARN, "mscale": 0.7}},
    "yarn, attention factor": {"rope_scaling": {**YARN, "attention_factor": 0.5}},
    "longrope": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 16},
    "longrope, factor": {"rope_scaling": {**LONGROPE, "factor": 4.0}},
    "longrope, attention factor": {"rope_scaling": {**LONGROPE, "factor": 4.0, "attention_factor": 1.5}},
    "longrope, not longer": {"rope_scaling": {**LONGROPE, "factor": 1.0}},
}


def config(**changes: Any) -> str:
    return json.dumps({"model_type": "llama", **SIZES, **changes})


@pytest.mark.parametrize("case", CASES)
def test_as_transformers(case: str) -> None:
    theirs = LlamaConfig(**{**SIZES, **CASES[case]})
    module = LlamaRotaryEmbedding(theirs)
    expected, scale = module.inv_freq, module.attention_scaling
    frequencies, our_scale, _ = _C.rotary_frequencies(config(**CASES[case]))
    assert our_scale == pytest.approx(scale, rel=1e-12)
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=3e-7)


@pytest.mark.parametrize(
    ("case", "most"),
    [("yarn", 0), ("linear", 0), ("dynamic", 64), ("longrope", 16), ("longrope, factor", 64)],
)
def test_up_to_how_many_positions_they_hold(case: str, most: int) -> None:
    assert _C.rotary_frequencies(config(**CASES[case]))[2] == most
    _C.Engine(config(**CASES[case]), max_positions=most)
    if most:
        with pytest.raises(ValueError, match=f"--model_max_length {most}, or train with transformers"):
            _C.Engine(config(**CASES[case]), max_positions=most + 1)


def test_a_longer_row_is_refused_before_it_is_computed() -> None:
    """The tables grow to twice their size where they may, and never beyond."""
    engine = _C.Engine(config(**CASES["longrope"]), max_positions=9)
    engine.logits(np.arange(16) % 40, np.array([16]))
    with pytest.raises(ValueError, match="beyond 16 tokens"):
        engine.logits(np.arange(17) % 40, np.array([17]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {**YARN, "factor": None}}, '"factor" is missing'),
        ({"rope_scaling": {**YARN, "factor": -1.0}}, '"factor" is -1.0, expected a positive number'),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, "give no range of frequencies"),
        ({"rope_scaling": {**YARN, "beta_fast": -1.0}}, "give no range of frequencies"),
        ({"rope_scaling": {**YARN, "truncate": 1}}, '"truncate" is 1, expected true or false'),
        (
            {"rope_scaling": {**LONGROPE, "factor": 2.0, "short_factor": [1.0] * 7}},
            '"short_factor" is .*expected a list of 8 positive numbers, one for each pair of head_dim 16',
        ),
        ({"rope_scaling": {**LONGROPE, "factor": 2.0, "long_factor": [0.0] * 8}}, '"long_factor" is'),
        (
            {"rope_scaling": {**LONGROPE, "factor": 2.0, "long_factor": 3}},
            '"long_factor" is 3, expected a list',
        ),
        ({"rope_scaling": LONGROPE}, '"factor" is missing'),
        (
            {"rope_scaling": {**LONGROPE, "factor": 2.0, "original_max_position_embeddings": 16}},
            '"original_max_position_embeddings" is 16, expected the same value at the top of config.json',
        ),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.rotary_frequencies(config(**changes))


NEWER_SIZES = {
    "vocab_size": 24, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("kind", ["gpt_neox", "gpt_neox_japanese", "phi", "stablelm"])
def test_theta_and_the_rotated_part_count(kind: str, part: float) -> None:
    rope = {"rope_type": "default", "rope_theta": 1000, "partial_rotary_factor": part}
    made = empty_model({"model_type": kind, **NEWER_SIZES, "rope_parameters": rope}, torch.float32)
    found = next(each for name, each in made.named_buffers() if name.endswith("rotary_emb.inv_freq"))
    rotated = int(16 * part)
    expected = 1000.0 ** -(torch.arange(0, rotated, 2).float() / rotated)
    torch.testing.assert_close(found, expected)
