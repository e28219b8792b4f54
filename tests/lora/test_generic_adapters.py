"""Adapters with the generic engine: peft and transformers' Trainer judge, architecture by architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

import fastsft
from engines import planned_bytes
from fastsft import _C
from fastsft.lora.generic_model import read_targets, with_peft
from fastsft.lora.merge import merge_adapter
from fastsft.lora.peft_modules import engine_name
from fastsft.lora.settings import LoraSettings
from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.generic_model import GenericModel
from fastsft.runtime.messages import collected
from generic_engines import (
    by_files,
    dataset_of,
    library_loss,
    library_model,
    random_rows,
    why_rows_are_padded,
)
from model.test_generic_architectures import ARCHITECTURES
from ranks import run_ranks
from trainer_pairs import FLAGS, WIDTH, Plain, curve, theirs, unrounded

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    name: ARCHITECTURES[name]
    for name in (
        "opt: learned positions", "gpt2: Conv1D, tied", "gpt_neox: parallel, partial rope, untied",
        "bloom: ALiBi", "falcon: multi-query, parallel", "phi: partial rope, head with bias",
        "phi3: fused projections", "gemma2: soft caps", "gemma3_text: local rope", "mixtral: experts",
        "olmo2: norms after", "granite: scaled logits", "starcoder2: biases",
    )
}  # fmt: skip
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
SETTINGS = LoraSettings(r=4, lora_alpha=6, target_modules="all-linear", use_rslora=True)


def peft_model(model_type: str, settings: LoraSettings, **config: Any) -> Any:
    """transformers' model under peft, nothing of it zero."""
    base = library_model(model_type, **config)
    fields = {**settings.to_config(), "inference_mode": False}
    model = get_peft_model(base, LoraConfig(**fields)).train()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def in_files(model: Any, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a model under peft by the engine's names, which are those of files."""
    named = {engine_name(name): value for name, value in values.items()}
    base = {name: value for name, value in named.items() if ".lora_" not in name}
    adapters = {name: value for name, value in named.items() if ".lora_" in name}
    return {**by_files(model.get_base_model(), base), **adapters}


def values_of(model: Any) -> dict[str, torch.Tensor]:
    saved = model.state_dict().keys()
    buffers = {name: value for name, value in model.named_buffers() if name in saved}
    return in_files(
        model, {name: value.detach() for name, value in [*model.named_parameters(), *buffers.items()]}
    )


def generic_model(config_json: str, settings: LoraSettings, **how: Any) -> GenericModel:
    empty = with_peft(empty_model(json.loads(config_json), torch.float32), settings)
    return GenericModel(empty, device="cpu", **how)


def engine_of(config_json: str, settings: LoraSettings, values: dict[str, torch.Tensor], **how: Any) -> Any:
    """The generic engine with these values. how: of GenericModel, and of the state."""
    packs, recompute = how.pop("packs", False), how.pop("recompute", False)
    made = generic_model(config_json, settings, recompute=recompute, packs=packs)
    groups = {name: how.pop(name) for name in list(how) if name.endswith("group")}
    engine = _C.Engine(config_json, _C.StateOptions(**how), model=made.for_engine(), **groups)
    assert set(engine.parameter_shapes) == set(values)
    for name, value in values.items():
        engine.set_parameter(name, value)
    engine.publish()
    return engine


def config_of(model: Any) -> str:
    return str(model.config.to_json_string(use_diff=False))


def check_gradients(model: Any, settings: LoraSettings, *, recompute: bool) -> None:
    """Loss and gradients of padded rows, and of one row where the model is trained so, are the library's."""
    rows, weight = random_rows([9, 5, 12]), 0.05
    expected_loss = library_loss(model, rows, weight)
    expected_loss.backward()
    base = model.get_base_model()
    trained = {each: one for each, one in model.named_parameters() if one.requires_grad}
    wanted = {each: torch.zeros_like(one) if one.grad is None else one.grad for each, one in trained.items()}
    for packs in (False, True) if why_rows_are_padded(base) is None else (False,):
        how = {"packs": packs, "recompute": recompute}
        engine = engine_of(config_of(base), settings, values_of(model), **how)
        loss, gradients = engine.gradients(dataset_of(rows), np.arange(3), np.full(3, weight))
        assert loss == pytest.approx(expected_loss.item(), rel=1e-6)
        assert gradients.keys() == in_files(model, trained).keys()
        for each, expected in in_files(model, wanted).items():
            scale = max(expected.abs().max().item(), 5e-3)  # biases of keys have no gradient but rounding
            assert (gradients[each] - expected).abs().max().item() < 4e-5 * scale, (each, packs)


@pytest.mark.covering
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("bias", ["none", "all", "lora_only"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name: str, bias: Any, recompute: bool) -> None:
    model_type, config = MODELS[name]
    settings = LoraSettings(r=4, lora_alpha=6, target_modules="all-linear", use_rslora=True, bias=bias)
    check_gradients(peft_model(model_type, settings, **config), settings, recompute=recompute)


@pytest.mark.parametrize("name", MODELS)
def test_targets_are_those_of_peft(name: str) -> None:
    model_type, config = MODELS[name]
    model = peft_model(model_type, SETTINGS, **config)
    empty = with_peft(empty_model(json.loads(config_of(model.get_base_model())), torch.float32), SETTINGS)
    shapes = read_targets(empty, SETTINGS).shapes()
    found = {
        engine_name(each): tuple(one.shape) for each, one in model.named_parameters() if one.requires_grad
    }
    assert shapes == found


def steps(groups: dict[str, str], config_json: str, values: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Two steps of two micro-batches under every strategy, of one also with one reduction a step."""
    results, dataset = {}, dataset_of(random_rows([9, 5, 12, 7, 20, 3]))
    for strategy, each in [*((name, True) for name in _C.strategies()), ("full_shard", False)]:
        engine = engine_of(config_json, SETTINGS, values, strategy=strategy, sync_each_batch=each, **groups)
        mine = np.arange(6)[engine.rank :: engine.world_size]
        parts, losses = [mine[:1], mine[1:]], []
        for _ in range(2):
            weights = [np.full(len(part), 0.02) for part in parts]
            engine.begin_step(dataset, parts, weights, learning_rate=1e-2, eps=1e-3)
            losses += [(done.loss, done.grad_norm) for done in engine.take_results(all=True)]
        results[strategy, each] = {
            "losses": losses, "all": engine.named_parameters(), "memory": engine.memory(),
        }  # fmt: skip
    return results


@pytest.mark.variants("gpt2")
@pytest.mark.parametrize("name", ["gpt2: Conv1D, tied", "gemma2: soft caps", "mixtral: experts"])
def test_ranks_train_alike(name: str) -> None:
    model_type, config = MODELS[name]
    model = peft_model(model_type, SETTINGS, **config)
    given = config_of(model.get_base_model()), values_of(model)
    trained = in_files(model, {each: one for each, one in model.named_parameters() if one.requires_grad})
    (alone,) = run_ranks(1, steps, *given)
    expected = alone["no_shard", True]
    assert expected["memory"]["gradients"] < 1.5 * 4 * sum(given[1][each].numel() for each in trained)
    for results in run_ranks(2, steps, *given, node_size=1):
        for (strategy, each), result in results.items():
            for found, wanted in zip(result["losses"], expected["losses"], strict=True):
                assert found == pytest.approx(wanted, rel=1e-5), strategy
            planned = planned_bytes(
                given[0], strategy=strategy, sync_each_batch=each, world_size=2,
                node_size=1 if "hybrid" in strategy else 0,
                model=generic_model(given[0], SETTINGS, recompute=False).layout,
            ).parts  # fmt: skip
            held = result["memory"]
            assert held["buffers"] == planned["whole units"], strategy
            for part in ("parameters", "gradients", "optimizer"):
                assert held[part] == planned[part], f"{part}, {strategy}"
            for one, value in result["all"].items():
                if one in trained:
                    assert torch.allclose(value, expected["all"][one], rtol=1e-3, atol=1e-5), one
                else:
                    assert torch.equal(value, given[1][one]), one


@pytest.mark.variants("gpt2", "gemma2")
@pytest.mark.parametrize("name", ["opt: learned positions", "gpt2: Conv1D, tied", "gemma2: soft caps"])
def test_the_curve_is_that_of_peft_with_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters drawn from the seed; what is saved opens in peft with the same logits."""
    unrounded(monkeypatch)
    model_type, config = MODELS[name]
    base = library_model(model_type, **config)
    base.save_pretrained(tmp_path / "base")
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear",
        base_model_name_or_path=str(tmp_path / "base"),
    )  # fmt: skip
    torch.manual_seed(42)
    trainer = theirs(tmp_path / "theirs", Plain(), module=get_peft_model(base, lora))
    trainer.train()
    args = fastsft.TrainingArguments(
        str(tmp_path / "ours"), **{"model_max_length": WIDTH, "plot_loss": False, **FLAGS}
    )
    ours = fastsft.Trainer(str(tmp_path / "base"), args, train_dataset=Plain(), peft_config=lora)
    ours.train()
    assert curve(ours) == pytest.approx(curve(trainer), abs=1e-5, rel=0)
    ours.save_model(str(tmp_path / "saved"))
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = trainer.model.eval()(ids).logits
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
        found = PeftModel.from_pretrained(again, tmp_path / "saved").eval()(ids).logits
    assert (found - expected).norm() <= 1e-4 * expected.norm()


def test_a_merge_of_transposed_weights_says_nothing_and_is_pefts(tmp_path: Path) -> None:
    """peft writes fan_in_fan_out for Conv1D, where it has an effect."""
    model = get_peft_model(
        library_model("gpt2", **GPT2), LoraConfig(r=2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    )
    torch.nn.init.normal_(model.base_model.model.transformer.h[0].mlp.c_fc.lora_B.default.weight)
    model.save_pretrained(tmp_path / "adapter")
    library_model("gpt2", **GPT2).save_pretrained(tmp_path / "base")
    with collected() as notices:
        merge_adapter(tmp_path / "adapter", tmp_path / "merged", tmp_path / "base")
    assert not notices.warned and not [each for each in notices.told if "fan_in" in each]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for name, value in model.merge_and_unload().named_parameters():
        assert torch.allclose(merged.get_parameter(name), value, atol=1e-6), name
