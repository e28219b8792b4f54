"""Lengths that decide in a model: none that short rows do not pass is packed, and the line says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from families import compare
from fastsft.model.engine_choice import as_model
from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.packing import IMPLEMENTATIONS, PackedBatch, packed
from fastsft.model.generic.small_model import has_kinds_of, layers_with_all_kinds, small_model
from generic_engines import library_model, why_rows_are_padded

SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip


class _Changed(GraniteForCausalLM):
    """Its embeddings are scaled by a method of their places."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, **given: Any) -> Any:
        """As Granite's."""
        embeddings = self.model.embed_tokens(input_ids)
        scaled = embeddings * self.scales(embeddings)
        return super().forward(inputs_embeds=scaled, position_ids=position_ids, **given)


class _FloorOfPositions(_Changed):
    def scales(self, hidden: torch.Tensor) -> Any:
        positions = torch.arange(hidden.shape[1])
        return 1 + 0.1 * torch.log1p(torch.floor((positions + 1) / 8192))[:, None]


class _CountedPositions(_Changed):
    def scales(self, hidden: torch.Tensor) -> Any:
        positions = torch.ones(hidden.shape[1]).cumsum(0)
        return 1 + 0.1 * (positions > 4096)[:, None]


class _LongRows(_Changed):
    def scales(self, hidden: torch.Tensor) -> Any:
        return 2.0 if hidden.shape[1] > 3000 else 1.0


class _Attribute(_Changed):
    def __init__(self, config: GraniteConfig) -> None:
        super().__init__(config)
        self.most = 700

    def scales(self, hidden: torch.Tensor) -> Any:
        length = hidden.shape[1]
        return min(length, self.most) / length


class _ByHelper(_Changed):
    def scales(self, hidden: torch.Tensor) -> Any:
        return _one_or_two(hidden)


def _one_or_two(hidden: torch.Tensor) -> float:
    _, length, _ = hidden.shape
    return 1.0 if length <= 2048 else 2.0


class _RareBranch(_Changed):
    def scales(self, hidden: torch.Tensor) -> Any:
        return torch.arange(hidden.shape[1])[:, None] if self.config.vocab_size == 97 else 1.0


class _LastTokens(_Changed):
    def scales(self, hidden: torch.Tensor) -> Any:
        kept = torch.zeros_like(hidden)
        kept[:, -2048:] = 1
        return kept


def _one_row(kind: type[GraniteForCausalLM]) -> Any:
    torch.manual_seed(0)
    return as_model(kind(GraniteConfig(**SIZES)))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (_FloorOfPositions, "conversations in one row would see each other"),
        (_CountedPositions, "conversations in one row would see each other"),
        (_LongRows, r"hidden.shape\[1\] > 3000 \(test_packing_trial.py:"),
        (_Attribute, r"min\(length, self.most\)"),
        (_ByHelper, "length <= 2048"),
        (_RareBranch, r"torch.arange\(hidden.shape\[1\]\)"),
        (_LastTokens, "-2048"),
    ],
)
def test_what_short_rows_do_not_pass_is_padded(kind: type[GraniteForCausalLM], why: str) -> None:
    """Sizes that no configuration has, in the class's own code."""
    model = _one_row(kind)
    assert "rows right-padded" in model.engine_words
    with pytest.raises(AssertionError, match=why):
        assert model.why_padded is None, model.why_padded


def test_a_class_without_source_is_padded() -> None:
    names: dict[str, Any] = {"GraniteForCausalLM": GraniteForCausalLM, "__name__": "made_by_exec"}
    code = "class Made(GraniteForCausalLM):\n    def forward(self, *a, position_ids=None, **b):\n        "
    exec(code + "return super(Made, self).forward(*a, position_ids=position_ids, **b)", names)
    assert "cannot be read" in str(_one_row(names["Made"]).why_padded)


class _ByImplementation(_Changed):
    def scales(self, hidden: torch.Tensor) -> Any:
        return 3.0 if self.config._attn_implementation in ("sdpa", "eager") else 1.0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_name_of_the_implementation_is_the_models_own(implementation: str) -> None:
    """A branch for it is taken in one row, too; another model's is not touched."""
    torch.manual_seed(0)
    model = _ByImplementation(GraniteConfig(**SIZES, attn_implementation=implementation)).eval()
    ids, lengths = torch.randint(3, 96, (1, 12)), [5, 7]
    positions = torch.cat([torch.arange(each) for each in lengths])[None]
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    row = PackedBatch(ids, torch.ones_like(ids), positions, torch.arange(12), lengths, ends, True)
    with torch.no_grad():
        expected = torch.cat([model(input_ids=part).logits for part in ids.split(lengths, dim=1)], dim=1)
        with packed(model, row):
            found = model(**row.inputs()).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert type(model.config._attn_implementation) is str


GEMMA = {
    **SIZES, "num_hidden_layers": 14, "query_pre_attn_scalar": 8, "sliding_window": 4096,
    "layer_types": ["full_attention"] * 13 + ["sliding_attention"],
}  # fmt: skip


def test_a_small_model_has_a_layer_of_each_kind_and_short_switches() -> None:
    """However late a kind comes, and whatever counts from the last layer."""
    model = empty_model({"model_type": "gemma3_text", **GEMMA}, torch.float32)
    assert layers_with_all_kinds(model) == 14
    small = small_model(lambda config: empty_model(config, torch.float32), model)
    assert small.config.layer_types[-1] == "sliding_attention" and small.config.sliding_window == 4
    plain = empty_model({"model_type": "llama", **SIZES, "num_hidden_layers": 20}, torch.float32)
    assert layers_with_all_kinds(plain) == 8 and not has_kinds_of(plain, model)


@pytest.mark.parametrize("changed", [{"floor_scale": 8192}, {"floor_scale": 512}])
def test_llama_4(changed: dict[str, Any]) -> None:
    """Its temperature counts positions over the whole row."""
    settings = {
        **SIZES, "num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 8192,
        "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], **changed,
    }  # fmt: skip
    why = why_rows_are_padded(library_model("llama4_text", **settings))
    assert why == "conversations in one row would see each other"


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
