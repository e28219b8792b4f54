"""rope_parameters of transformers 5 in the generic engine, whichever release is installed."""

from __future__ import annotations

import pytest
import torch

from fastsft.model.generic.empty_model import empty_model

SIZES = {
    "vocab_size": 24, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("kind", ["gpt_neox", "gpt_neox_japanese", "phi", "stablelm"])
def test_theta_and_the_rotated_part_count(kind: str, part: float) -> None:
    rope = {"rope_type": "default", "rope_theta": 1000, "partial_rotary_factor": part}
    made = empty_model({"model_type": kind, **SIZES, "rope_parameters": rope}, torch.float32)
    found = next(each for name, each in made.named_buffers() if name.endswith("rotary_emb.inv_freq"))
    rotated = int(16 * part)
    expected = 1000.0 ** -(torch.arange(0, rotated, 2).float() / rotated)
    torch.testing.assert_close(found, expected)
