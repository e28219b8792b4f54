"""Parameters that consist of many tensors of files, as transformers 5 has them for experts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from fastsft.arguments import TrainingArguments
from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.units import make_units
from fastsft.model.generic.unreached import Unreached
from fastsft.trainer import Trainer
from generic_engines import library_model, random_rows

SMALL = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = {
    **SMALL, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip
of_transformers_5 = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="transformers 4 has a parameter for each tensor"
)

Convert = Callable[[str, torch.Tensor], dict[str, torch.Tensor]]


def halves(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of each linear of the MLP the first and the second half of its rows, under names of their own."""
    if not name.endswith("c_fc.weight"):
        return {name: tensor}
    return {f"{name}.{at}": each.contiguous() for at, each in enumerate(torch.chunk(tensor, 2))}


def convert_by(monkeypatch: pytest.MonkeyPatch, convert: Convert) -> None:
    """A conversion in the place of transformers 5's."""

    def revert(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {key: part for name, tensor in tensors.items() for key, part in convert(name, tensor).items()}

    made = ModuleType("transformers.core_model_loading")
    made.revert_weight_conversion = revert  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)


def trained(model: Any, output: Path, shard: str = "5GB", weight_decay: float = 0.0, **more: Any) -> Trainer:
    rows = [
        {"input_ids": torch.tensor(ids), "labels": torch.tensor([-100] * begin + ids[begin:end])}
        for ids, (begin, end) in random_rows([9, 5, 12, 7, 8, 6, 11, 10])
    ]
    args = TrainingArguments(
        output_dir=str(output), use_cpu=True, per_device_train_batch_size=4, max_steps=4, save_steps=2,
        save_strategy="steps", learning_rate=1e-3, report_to="none", plot_loss=False, disable_tqdm=True,
        logging_steps=1, max_shard_size=shard, weight_decay=weight_decay,
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=rows)
    trainer.train(**more)
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_parameter_of_two_tensors_learns_as_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = library_model("gpt2", **GPT2)
    model.save_pretrained(tmp_path / "whole")
    whole = trained(str(tmp_path / "whole"), tmp_path / "a")
    convert_by(monkeypatch, halves)
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    model.save_pretrained(
        tmp_path / "split",
        state_dict={key: part for name, each in tensors.items() for key, part in halves(name, each).items()},
    )
    split = trained(str(tmp_path / "split"), tmp_path / "b")
    assert losses(split) == losses(whole)
    found, expected = split.engine.named_parameters(), whole.engine.named_parameters()
    assert any(name.endswith("c_fc.weight.1") for name in found)
    for name, value in expected.items():
        for key, part in halves(name, value).items():
            assert torch.equal(found.pop(key), part)
    assert not found
    checkpoint = str(tmp_path / "b" / "checkpoint-2")
    again = trained(str(tmp_path / "split"), tmp_path / "c", resume_from_checkpoint=checkpoint)
    weights = split.engine.named_parameters()
    assert all(torch.equal(value, weights[name]) for name, value in again.engine.named_parameters().items())


def test_a_given_model_of_such_parameters_gets_its_weights_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, split = (library_model("gpt2", **GPT2) for _ in range(2))
    trained(whole, tmp_path / "a")
    convert_by(monkeypatch, halves)
    trainer = trained(split, tmp_path / "b")
    expected = dict(whole.named_parameters())
    assert all(torch.equal(value, expected[name]) for name, value in split.named_parameters())
    gathered = trainer.model.state_dict()
    assert gathered.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in gathered.items())
    trainer._save(str(tmp_path / "given"), state_dict=gathered)
    trainer.save_model(str(tmp_path / "saved"))
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("given", "saved")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(value, files[1][name]) for name, value in files[0].items())


@pytest.mark.parametrize(
    "convert, message",
    [
        (
            lambda name, tensor: {name: tensor.t().contiguous() if tensor.dim() == 2 else tensor},
            "wte.weight in",
        ),
        (lambda name, tensor: {name: tensor + 1}, "computed from parameters"),
        (lambda name, tensor: {name: tensor[:1]}, "have 32 of its elements"),
        (lambda name, tensor: {f"{name}.{at}": tensor[at:] for at in (0, 1)}, "leave out or repeat elements"),
    ],
)
def test_other_forms_are_refused(monkeypatch: pytest.MonkeyPatch, convert: Convert, message: str) -> None:
    convert_by(monkeypatch, convert)
    with pytest.raises(ValueError, match=f"GPT2LMHeadModel: expected files with the rows.*{message}"):
        make_units(empty_model({"model_type": "gpt2", **GPT2}, torch.float32), Unreached())


@pytest.mark.parametrize("given", [False, True])
def test_buffers_and_frozen_parameters_keep_their_values(given: bool, tmp_path: Path) -> None:
    """They are saved, resumed and computed with, and nothing moves them."""
    shared = {"kv_lora_rank": 8, "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
    model = library_model(
        "deepseek_v3", **{**EXPERTS, "num_key_value_heads": 4}, **shared, n_routed_experts=4, n_group=2,
        topk_group=1, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1, v_head_dim=8,
    )  # fmt: skip
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    with torch.no_grad():
        model.get_buffer(name).copy_(torch.tensor([0.3, -0.2, 0.1, 0.4]))
    kept = model.get_buffer(name).clone()
    model.save_pretrained(tmp_path / "model")
    start = model if given else str(tmp_path / "model")
    trainer = trained(start, tmp_path / "a", weight_decay=0.1)
    trainer.save_model(str(tmp_path / "saved"))
    ours, theirs = (load_file(tmp_path / each / "model.safetensors") for each in ("saved", "model"))
    assert ours.keys() == theirs.keys() and torch.equal(ours[name], kept)
    moved = "model.layers.1.mlp.gate.weight"
    assert not torch.equal(ours[moved], theirs[moved])
    checkpoint = str(tmp_path / "a" / "checkpoint-2")
    again = trained(
        str(tmp_path / "model"), tmp_path / "b", weight_decay=0.1, resume_from_checkpoint=checkpoint
    )
    weights = trainer.engine.named_parameters()
    assert all(torch.equal(value, weights[each]) for each, value in again.engine.named_parameters().items())


@of_transformers_5
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_of_transformers_5(family: str, tmp_path: Path) -> None:
    """Files are those of save_pretrained; losses and weights those of the given model itself."""
    model = library_model(family, **EXPERTS, **MIXTURES[family])
    model.save_pretrained(tmp_path / "model")
    by_files = trained(str(tmp_path / "model"), tmp_path / "a")
    given = trained(model, tmp_path / "b")
    assert losses(given) == losses(by_files)
    by_files.save_model(str(tmp_path / "saved"))
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all(
        torch.equal(value, dict(opened.named_parameters())[name]) for name, value in model.named_parameters()
    )
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
def test_the_split_into_files_is_transformers(family: str, tmp_path: Path) -> None:
    settings = GPT2 if family == "gpt2" else {**SMALL, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    model = library_model(family, **settings)
    trainer = trained(model, tmp_path / "out", shard="20KB")
    trainer.save_model(str(tmp_path / "saved"))
    model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    index = [
        json.loads((tmp_path / name / "model.safetensors.index.json").read_text())["weight_map"]
        for name in ("saved", "theirs")
    ]
    assert index[0] == index[1]
