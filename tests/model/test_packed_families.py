"""Families of transformers in the generic engine: equal to it on rows that pass every switch of a class."""

from __future__ import annotations

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from families import compare

PACKED = (
    "dots1", "exaone4", "gemma3n_text", "gemma4_text", "gpt_oss", "hunyuan_v1_dense", "hunyuan_v1_moe",
    "olmo3", "seed_oss",
)  # fmt: skip
# A state, a convolution, positions of the row or masks of the model's own go over a row as a whole.
PADDED = (
    "deepseek_v32", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "llama4_text", "minimax_m3_vl_text",
    "nemotron_h", "qwen3_5_text", "qwen3_next",
)  # fmt: skip


@pytest.mark.parametrize("kind", sorted((*PACKED, *PADDED)))
def test_a_family_is_as_in_transformers(kind: str) -> None:
    """Loss and norm of the gradients; in one row, as with each conversation alone."""
    if kind not in CONFIG_MAPPING_NAMES:
        pytest.skip(f"the installed transformers has no {kind}")
    found = compare(kind)
    assert (found.why is None) == (kind in PACKED), found.why
    assert found.worst < 1e-5, found
