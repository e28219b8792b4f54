"""Adapters of parameters (target_parameters), with every release of transformers: peft judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fastsft.lora.generic_model import GenericAdaptedModel, read_targets, with_peft
from fastsft.lora.merge import merge_adapter
from fastsft.lora.settings import LoraSettings
from fastsft.model.engine_choice import open_model
from fastsft.model.generic.empty_model import empty_model
from fastsft.runtime.messages import collected
from generic_engines import library_model
from lora.test_generic_adapters import check_gradients, config_of, peft_model
from model.test_generic_architectures import ARCHITECTURES, GROUPED

EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_oss": ARCHITECTURES["gpt_oss: attention sinks"],
    "llama4_text": ("llama4_text", {
        **GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1,
        "intermediate_size_mlp": 32, "attention_chunk_size": 8, "interleave_moe_layer_step": 1,
    }),
    "granitemoe": ("granitemoe", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "jamba": ("jamba", {
        **GROUPED, "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1,
        "num_experts": 2, "mamba_d_state": 4, "mamba_d_conv": 2, "mamba_dt_rank": 4,
    }),
    "llama": ("llama", GROUPED),
}  # fmt: skip


def settings_of(**fields: Any) -> LoraSettings:
    return LoraSettings(**{"r": 4, "lora_alpha": 6, "target_modules": ("q_proj",), **fields})


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gpt_oss", {"target_parameters": EXPERTS, "bias": "all"}),  # [experts, inputs, outputs], with biases
        ("gpt_oss", {"target_parameters": ("router.weight", "down_proj"), "use_rslora": True}),
        ("llama4_text", {"target_parameters": EXPERTS, "rank_pattern": {"down_proj": 6}}),
        ("granitemoe", {"target_parameters": ("input_linear.weight", "gate_up_proj"), "target_modules": ()}),
        ("llama", {"target_parameters": ("q_proj.weight", "lm_head.weight"), "target_modules": ("v_proj",)}),
    ],
)
def test_loss_and_gradients(name: str, fields: dict[str, Any], recompute: bool) -> None:
    model_type, config = MODELS[name]
    settings = settings_of(**fields)
    check_gradients(peft_model(model_type, settings, **config), settings, recompute=recompute)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("llama4_text", {"target_modules": "all-linear"}, "Llama4Router., which gives several .* q_proj"),
        ("llama", {"target_parameters": ("embed_tokens.weight",)}, "embed_tokens .Embedding., whose weights"),
        ("llama", {"target_parameters": ("norm.weight",)}, "only 2d and 3d are supported"),
        ("llama", {"target_parameters": ("q_proj.weight",)}, "q_proj' .* not also targeted"),
        ("llama", {"target_parameters": ("x",), "target_modules": ()}, "LoRA: peft makes no such adapters"),
        ("jamba", {"target_parameters": ("A_log",)}, "JambaMambaMixer.*, which holds other layers .* A_log"),
        ("gpt_oss", {"target_parameters": EXPERTS, "lora_dropout": 0.1}, "lora_dropout: expected 0 .* 0.1; "),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused(name: str, fields: dict[str, Any], message: str) -> None:
    model_type, config = MODELS[name]
    empty = empty_model(json.loads(config_of(library_model(model_type, **config))), torch.float32)
    with pytest.raises(ValueError, match=message):
        read_targets(with_peft(empty, settings_of(**fields)), settings_of(**fields))


def test_a_name_that_matches_nothing_is_said(tmp_path: Path) -> None:
    model_type, config = MODELS["gpt_oss"]
    library_model(model_type, **config).save_pretrained(tmp_path)
    model: Any = open_model(str(tmp_path))
    with collected() as notices:
        made = GenericAdaptedModel(model, settings_of(target_parameters=("down_proj", "up_proj")))
    assert [each for each in notices.warned if "up_proj" in each and "matches nothing" in each]
    assert made.targets.modules == ["q_proj", "down_proj"]
    assert all("experts" in row[0] and row[3] == "down_proj" for row in made.adapter_facts()["linears"][2:])


@pytest.mark.parametrize("name", ["gpt_oss", "llama4_text"])
def test_a_merge_of_transposed_experts_is_pefts(name: str, tmp_path: Path) -> None:
    model_type, config = MODELS[name]
    model = peft_model(model_type, settings_of(target_parameters=EXPERTS), **config)
    model.save_pretrained(tmp_path / "adapter")
    library_model(model_type, **config).save_pretrained(tmp_path / "base")
    merge_adapter(tmp_path / "adapter", tmp_path / "merged", tmp_path / "base")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    for each, value in model.merge_and_unload().named_parameters():
        assert torch.allclose(merged.get_parameter(each), value, atol=1e-6), each


def test_adapters_of_experts_of_another_release_are_refused(tmp_path: Path) -> None:
    """transformers 4 has a linear layer for each expert, transformers 5 one parameter for all of them."""
    model_type, config = ARCHITECTURES["qwen3_moe: norms of queries, experts"]
    settings = settings_of(target_modules="all-linear")
    library_model(model_type, **config).save_pretrained(tmp_path / "base")
    model = peft_model(model_type, settings, **config)
    model.save_pretrained(tmp_path / "adapter")
    merge_adapter(tmp_path / "adapter", tmp_path / "merged", tmp_path / "base")
    files = tmp_path / "adapter" / "adapter_model.safetensors"
    old, new = ".experts.0.gate_proj.lora", ".experts.base_layer.lora"
    names = [(old, new), (new, old)]
    save_file(
        {next((name.replace(a, b) for a, b in names if a in name), name): value
         for name, value in load_file(files).items()},
        files,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"has no .*experts\..*transformers 4 has .* with the release"):
        merge_adapter(tmp_path / "adapter", tmp_path / "again", tmp_path / "base")
