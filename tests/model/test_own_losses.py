"""Losses that classes of transformers add by their configuration: refused wherever it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import OlmoeConfig

import fastsft
from fastsft.model.engine_choice import open_model
from generic_engines import dataset_of, generic_engine, library_loss, library_model, random_rows
from model.test_generic_architectures import ARCHITECTURES, GROUPED
from trainer_pairs import FLAGS, WIDTH, Plain

FLAG = {"output_router_logits": True}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mixtral": (*ARCHITECTURES["mixtral: experts"], FLAG),
    "qwen2_moe": (*ARCHITECTURES["qwen2_moe: shared expert"], FLAG),
    "qwen3_moe": (*ARCHITECTURES["qwen3_moe: norms of queries, experts"], FLAG),
    "olmoe": (*ARCHITECTURES["olmoe: experts"], FLAG),
    "gpt_oss": (*ARCHITECTURES["gpt_oss: attention sinks"], FLAG),
    "ernie4_5_moe": (*ARCHITECTURES["ernie4_5_moe: a frozen parameter"], FLAG),
    "granitemoe": ("granitemoe", EXPERTS, {**FLAG, "router_aux_loss_coef": 0.5}),
    "phimoe": ("phimoe", EXPERTS, {**FLAG, "router_aux_loss_coef": 0.5}),
    "jamba": ("jamba", {
        **GROUPED, "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1,
        "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
        "mamba_d_state": 4, "mamba_d_conv": 2, "mamba_dt_rank": 4,
    }, FLAG),
    "bamba": ("bamba", {
        **GROUPED, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8,
        "attn_layer_indices": [1],
    }, {"z_loss_coefficient": 1e-6}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_class_that_adds_a_loss_is_refused(name: str, tmp_path: Path) -> None:
    """The library's own losses say that the setting is one."""
    model_type, config, setting = MODELS[name]
    model = library_model(model_type, **config, **setting)
    model.save_pretrained(tmp_path)
    flag = next(iter(setting))
    with pytest.raises(ValueError, match=f"config.json: {flag} is .*set it to (false|0), or train with tr"):
        open_model(str(tmp_path))
    if flag == "z_loss_coefficient":
        setting = {flag: 0.5}  # which float32 shows
    rows = random_rows([9, 5])
    with torch.no_grad():
        losses = [
            library_loss(library_model(model_type, **config, **more), rows, 0.05) for more in ({}, setting)
        ]
    assert losses[1] > losses[0] * 1.0001


@pytest.mark.parametrize("inside", [("text_config",), ("thinker_config", "text_config")])
def test_a_configuration_inside_counts(inside: tuple[str, ...], tmp_path: Path) -> None:
    config: dict[str, Any] = FLAG
    for name in reversed(inside):
        config = {name: config}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "opt", **config}))
    with pytest.raises(ValueError, match=f"{'.'.join(inside)}.output_router_logits is true: .* to false"):
        open_model(str(tmp_path))


def test_what_a_class_has_by_itself_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose class adds the loss of routers unless config.json says no."""
    model_type, config = ARCHITECTURES["olmoe: experts"]
    library_model(model_type, **config).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    written.pop("output_router_logits", None)
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert "experts" in str(open_model(str(tmp_path)).parameter_shapes())
    usual = OlmoeConfig.__init__
    monkeypatch.setattr(OlmoeConfig, "__init__", lambda self, **given: usual(self, **{**FLAG, **given}))
    with pytest.raises(ValueError, match=r"OlmoeForCausalLM.config: output_router_logits is true"):
        open_model(str(tmp_path)).parameter_shapes()


def test_a_given_model_is_refused(tmp_path: Path) -> None:
    model = library_model("mixtral", **{**EXPERTS, **FLAG})
    args = fastsft.TrainingArguments(
        str(tmp_path), **{"model_max_length": WIDTH, "plot_loss": False, **FLAGS}
    )
    with pytest.raises(ValueError, match=r"MixtralForCausalLM.config: output_router_logits is true"):
        fastsft.Trainer(model, args, train_dataset=Plain())


def test_a_coefficient_alone_has_no_effect() -> None:
    """As in the class."""
    model = library_model("mixtral", **EXPERTS, router_aux_loss_coef=5.0, output_router_logits=False)
    rows = random_rows([9, 5])
    with torch.no_grad():
        expected = library_loss(model, rows, 0.05).item()
    found = generic_engine(model).loss(dataset_of(rows), np.arange(2), np.full(2, 0.05))
    assert found == pytest.approx(expected, rel=1e-6)
