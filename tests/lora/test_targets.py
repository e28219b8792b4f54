"""Modules, ranks, scales, trained parameters and first values are peft's, for every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from fastsft.lora.adapted_model import initial_values
from fastsft.lora.adapter_files import AdapterDirectory, write_adapter
from fastsft.lora.modules import modules_of
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import check_joined, resolve, with_unique_patterns
from fastsft.runtime.messages import collected
from native_families import CONFIGS, DENSE

_SIZES = {
    "vocab_size": 24, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3,
    "num_attention_heads": 4, "pad_token_id": 0,
}  # fmt: skip
_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("untied", {}),
    "FastChat's": ("mistral", {"target_modules": ["q_proj", "v_proj"], "lora_alpha": 16}),
    "all linear": ("qwen3", {"target_modules": "all-linear"}),
    "all linear, fused": ("phi3", {"target_modules": "all-linear"}),
    "one of the fused": ("phi3", {"target_modules": ["qkv_proj"], "modules_to_save": ["o_proj"]}),
    "all linear without some": ("untied", {"target_modules": "all-linear", "exclude_modules": ["k_proj"]}),
    "a regular expression": ("untied", {"target_modules": r".*\.[12]\.(self_attn\.q_proj|mlp\..*_proj)"}),
    "excluded by expression": ("qwen2", {"target_modules": _LINEAR, "exclude_modules": r".*\.0\..*"}),
    "layers": ("tied", {"target_modules": _LINEAR, "layers_to_transform": [0, 2]}),
    "one layer by pattern": (
        "untied", {"target_modules": ["v_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
    ),
    "full names": ("untied", {"target_modules": ["model.layers.1.mlp.up_proj", "self_attn.k_proj"]}),
    "patterns": (
        "untied",
        {
            "target_modules": _LINEAR, "rank_pattern": {"k_proj": 3, r"layers\.1\..*": 5}, "r": 2,
            "alpha_pattern": {"0.self_attn.q_proj": 7, "down_proj": 2.5},
        },
    ),
    "rsLoRA": ("untied", {"target_modules": ["o_proj"], "use_rslora": True, "r": 6}),
    "biases of adapted modules": ("biases", {"target_modules": ["q_proj", "up_proj"], "bias": "lora_only"}),
    "all biases": ("qwen2", {"target_modules": ["down_proj"], "bias": "all"}),
    "head, and norms whole": (
        "untied", {"target_modules": ["lm_head", "q_proj"], "modules_to_save": ["norm", "embed_tokens"]},
    ),
    "gaussian": ("untied", {"init_lora_weights": "gaussian", "r": 4}),
    "as nn.Linear makes them": ("untied", {"init_lora_weights": False}),
}  # fmt: skip


def peft_model(kind: str, fields: dict[str, Any], seed: int = 3) -> tuple[Any, Any]:
    """peft's model with adapters drawn from `seed`, and the configuration that it was made of."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**_SIZES, **CONFIGS[kind]}))
    lora = LoraConfig(task_type="CAUSAL_LM", **fields)
    torch.manual_seed(seed)
    return get_peft_model(model, lora), lora


def engine_name(name: str) -> str:
    for part in (".default", ".base_layer", ".modules_to_save"):
        name = name.replace(part, "")
    return name.removeprefix("base_model.model.")


def config_of(model: Any) -> dict[str, Any]:
    return json.loads(model.config.to_json_string(use_diff=False))


@pytest.mark.parametrize("kind", DENSE)
def test_modules_are_those_of_transformers(kind: str) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**_SIZES, **CONFIGS[kind]}))
    ours, theirs = modules_of(config_of(model)), [each for each in model.named_modules() if each[0]]
    assert [module.name for module in ours] == [name for name, _ in theirs]
    for module, (_, found) in zip(ours, theirs, strict=True):
        own = {name: tuple(each.shape) for name, each in found.named_parameters(recurse=False)}
        assert module.parameters == own and module.is_linear == isinstance(found, torch.nn.Linear)


@pytest.mark.parametrize("case", _CASES)
def test_what_is_trained_and_its_first_values_are_peft_s(case: str) -> None:
    kind, fields = _CASES[case]
    model, lora = peft_model(kind, fields)
    settings = LoraSettings.from_config(LoraConfig(task_type="CAUSAL_LM", **fields).to_dict(), "LoraConfig")
    targets = resolve(settings, config_of(model))

    trained = {engine_name(name): each for name, each in model.named_parameters() if each.requires_grad}
    assert targets.shapes() == {name: tuple(each.shape) for name, each in trained.items()}
    layers = {
        engine_name(name): (each.r["default"], each.scaling["default"])
        for name, each in model.named_modules()
        if hasattr(each, "lora_A")
    }
    assert [each.module for each in targets.adapters] == list(layers)
    assert {each.module: (each.rank, each.scale) for each in targets.adapters} == layers

    state = torch.get_rng_state()
    first = initial_values(targets, 3, settings.init_lora_weights)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, trained[name]) for name, value in first.items())
    assert first.keys() == {name for name in trained if ".lora_" in name}
    assert LoraSettings.from_config(settings.to_config(), "again") == settings
    assert settings.to_config().items() >= {"peft_type": "LORA", "r": lora.r}.items()


@pytest.mark.parametrize("targets", [_LINEAR, "all-linear"])
def test_excluded_targets_are_not_missed(targets: Any) -> None:
    """peft itself writes the names of all linears in place of all-linear, excluded ones among them."""
    model, _ = peft_model("untied", {"target_modules": targets, "exclude_modules": ["k_proj"]})
    settings = LoraSettings.from_config(model.peft_config["default"].to_dict(), "LoraConfig")
    with collected() as notices:
        assert "k_proj" not in resolve(settings, config_of(model)).modules
    assert not notices.warned


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["nothing"]},
        {"target_modules": ["self_attn"]},
        {"target_modules": ["input_layernorm"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [9]},
        {"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]},
        {"target_modules": r".*"},
    ],
)
def test_what_peft_refuses_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        peft_model("untied", fields)
    settings = LoraSettings.from_config(LoraConfig(**fields).to_dict(), "LoraConfig")
    config = AutoConfig.for_model(**{**_SIZES, **CONFIGS["untied"]})
    with pytest.raises(ValueError, match=r"LoRA: .*match"):
        resolve(settings, json.loads(config.to_json_string(use_diff=False)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "use_dora: expected False, got True; leave it out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: expected True, False or gaussian, got 'pissa'"),
        ({"init_lora_weights": "olora"}, "got 'olora'"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"lora_bias": True}, "lora_bias"),
        ({"r": 0}, "r: expected at least 1, got 0"),
        ({"lora_dropout": 1.0}, "lora_dropout: expected 0 or more and less than 1"),
        ({"bias": "some"}, "bias: expected one of none, all, lora_only"),
        ({"task_type": "SEQ_CLS"}, "task_type: expected CAUSAL_LM, got 'SEQ_CLS'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    config = {**LoraConfig(target_modules=["q_proj"]).to_dict(), **fields}
    with pytest.raises(ValueError, match=f"^here: .*{message.split(';')[0]}"):
        LoraSettings.from_config(config, "here")


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("untied", {"target_modules": ["embed_tokens"]}, "no adapters of embeddings"),
        ("tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "is tied in this model"),
        ("untied", {"target_modules": "("}, "is no regular expression"),
        ("untied", {"target_parameters": ["mlp.x"]}, "target_parameters: expected nothing with the native"),
        ("untied", {"modules_to_save": ["nowhere"]}, "match no module"),
        (
            "untied",
            {"target_modules": ["q_proj,v_proj"]},
            "match no module .*write the names with spaces",
        ),
        (
            "untied",
            {"target_modules": '["q_proj","v_proj"]'},
            "match no module .*write the names with spaces",
        ),
        ("untied", {"target_modules": "[q_proj,v_proj]"}, "match no module .*write the names with spaces"),
        (
            "untied",
            {"target_modules": r".*\.[xy]_proj{1,2}"},
            r"match no module .*down_proj, lm_head \(all-linear: all of them\)$",
        ),
    ],
)
def test_what_only_peft_does(kind: str, fields: dict[str, Any], message: str) -> None:
    config = json.loads(AutoConfig.for_model(**{**_SIZES, **CONFIGS[kind]}).to_json_string(use_diff=False))
    with pytest.raises(ValueError, match=message):
        resolve(LoraSettings.from_config(LoraConfig(**fields).to_dict(), "LoraConfig"), config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"target_modules": ["down_proj"], "modules_to_save": ["v_proj", "k_proj"]},
            r"match model.layers.0.self_attn.k_proj, v_proj, but not q_proj, .*q_proj k_proj v_proj\)",
        ),
        (
            {"modules_to_save": ["1.mlp.up_proj"]},
            r"match model.layers.1.mlp.up_proj, but not gate_proj, .*gate_proj up_proj\)",
        ),
        ({"target_modules": ["q_proj"], "modules_to_save": ["k_proj", "v_proj"]}, "but not q_proj"),
    ],
)
def test_a_part_of_a_matrix_is_not_trained_whole(fields: dict[str, Any], message: str) -> None:
    """The engine would refuse it; adapters of peft that have it are merged."""
    model, _ = peft_model("biases", fields)
    settings = LoraSettings.from_config(LoraConfig(**fields).to_dict(), "LoraConfig")
    with pytest.raises(ValueError, match=message):
        check_joined(resolve(settings, config_of(model)))
    whole = LoraConfig(target_modules=["down_proj"], modules_to_save=_LINEAR[:3])
    check_joined(resolve(LoraSettings.from_config(whole.to_dict(), "LoraConfig"), config_of(model)))


def test_a_name_that_matches_nothing_is_told() -> None:
    config = json.loads(
        AutoConfig.for_model(**{**_SIZES, **CONFIGS["untied"]}).to_json_string(use_diff=False)
    )
    settings = LoraConfig(target_modules=["q_proj", "foo"]).to_dict()
    with collected() as notices:
        resolve(LoraSettings.from_config(settings, "LoraConfig"), config)
    (line,) = notices.warned
    assert line.startswith("LoRA: the target module foo matches nothing; the model's linear layers are ")


_OVERLAPPING: dict[str, dict[str, Any]] = {
    "alpha": {"alpha_pattern": {"q_proj": 1, r"(^|.*)layers.*": 64}},
    "rank": {"rank_pattern": {"q_proj": 6, r".*layers\.0.*": 3}},
    "both": {"alpha_pattern": {"v_proj": 2, r".*layers\.1.*": 9}, "rank_pattern": {"v_proj": 2, ".*": 3}},
}


@pytest.mark.parametrize("case", _OVERLAPPING)
def test_patterns_that_overlap_say_the_same_in_a_file_which_sorts_keys(case: str, tmp_path: Path) -> None:
    fields = {"target_modules": ["q_proj", "v_proj"], **_OVERLAPPING[case]}
    model, lora = peft_model("untied", fields)
    trained = {
        name: (each.r["default"], each.scaling["default"])
        for name, each in model.named_modules()
        if hasattr(each, "lora_A")
    }
    settings = LoraSettings.from_config(lora.to_dict(), "LoraConfig")
    targets = resolve(settings, config_of(model))
    values = initial_values(targets, 3, settings.init_lora_weights)
    write_adapter(tmp_path, settings, targets, values)
    assert resolve(AdapterDirectory(tmp_path).settings, config_of(model)) == targets
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**_SIZES, **CONFIGS["untied"]}))
    again = PeftModel.from_pretrained(base, tmp_path)
    found = {name: each for name, each in again.named_modules() if hasattr(each, "lora_A")}
    assert {name: (each.r["default"], each.scaling["default"]) for name, each in found.items()} == trained


def test_patterns_that_do_not_overlap_stay_as_they_are() -> None:
    config = {**_SIZES, **CONFIGS["untied"]}
    for pattern in ({"v_proj": 5, r"layers\.1.*q_proj": 3}, {"q_proj": 5, r".*layers\.0.*": 5}):
        settings = LoraSettings(target_modules=("q_proj", "v_proj"), rank_pattern=pattern, r=2)
        assert with_unique_patterns(settings, resolve(settings, config)) == settings
