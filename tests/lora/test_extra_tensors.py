"""Frozen heads and embeddings that an adapter has of its own: of a resized model, and of its own files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

import fastsft
from fastsft.arguments import LoraArguments
from fastsft.lora.attach import open_model
from fastsft.lora.merge import merge_adapter
from trainer_pairs import FLAGS, VOCABULARY, WIDTH, Plain, model, ours

ROWS = VOCABULARY + 8
ALONG = {"base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"}
IDS = torch.arange(2, 12)[None]


def config() -> LoraConfig:
    return LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])


def directory(folder: Path) -> Path:
    model().save_pretrained(folder)
    return folder


def resized(folder: Path, seed: int) -> Any:
    """The model of a directory with rows for new tokens, which are random."""
    base = type(model()).from_pretrained(folder)
    torch.manual_seed(seed)
    base.resize_token_embeddings(ROWS)
    with torch.no_grad():
        for layer in (base.get_input_embeddings(), base.get_output_embeddings()):
            layer.weight[VOCABULARY:].normal_(0, 0.3)
    return base


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module.eval()(input_ids=IDS).logits
    return found


def others(path: Path) -> dict[str, torch.Tensor]:
    """What is in the file of an adapter and no A or B."""
    found = load_file(path / "adapter_model.safetensors")
    return {name: value for name, value in found.items() if "lora_" not in name}


def test_a_resized_model_is_saved_with_head_and_embedding_as_by_peft(tmp_path: Path) -> None:
    base = directory(tmp_path / "base")
    module = get_peft_model(resized(base, 1), config())
    module.save_pretrained(tmp_path / "judge")
    trainer = ours(tmp_path / "out", Plain(), module=module, max_steps=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    expected, found = others(tmp_path / "judge"), others(tmp_path / "saved")
    assert found.keys() == expected.keys() == ALONG
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    again = PeftModel.from_pretrained(resized(base, 2), tmp_path / "saved")
    assert torch.equal(logits(again), logits(module))


def test_a_resized_model_goes_on_with_the_rows_of_the_checkpoint(tmp_path: Path) -> None:
    base = directory(tmp_path / "base")
    flags = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}

    def trainer(seed: int) -> Any:
        return ours(tmp_path / "out", Plain(), module=get_peft_model(resized(base, seed), config()), **flags)

    whole = trainer(1)
    whole.train()
    rest = trainer(2)
    rest.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert [each.get("loss") for each in rest.state.log_history] == [
        each.get("loss") for each in whole.state.log_history
    ]
    assert torch.equal(logits(rest.model.module), logits(whole.model.module))


def test_a_model_of_the_base_models_size_is_saved_as_before(tmp_path: Path) -> None:
    base = type(model()).from_pretrained(directory(tmp_path / "base"))
    trainer = ours(tmp_path / "out", Plain(), module=get_peft_model(base, config()), max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert not others(tmp_path / "saved")


@pytest.fixture
def own_head(tmp_path: Path) -> tuple[Path, Path, Any]:
    """A base model, peft's adapter over it with a head and an embedding of its own, and that model."""
    base = directory(tmp_path / "base")
    changed = type(model()).from_pretrained(base)
    torch.manual_seed(7)
    with torch.no_grad():
        for layer in (changed.get_input_embeddings(), changed.get_output_embeddings()):
            layer.weight.add_(0.3 * torch.randn_like(layer.weight))
    made = get_peft_model(changed, config())
    made.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    return base, tmp_path / "adapter", made


def going_on(base: Path, adapter: Path, output: Path, engine: str = "native", **flags: Any) -> Any:
    lora = LoraArguments(lora=True, lora_weight_path=str(adapter))
    args = fastsft.TrainingArguments(
        str(output), **{"model_max_length": WIDTH, "plot_loss": False, **FLAGS, "max_steps": 2, **flags}
    )
    return fastsft.Trainer(
        open_model(str(base), lora, None, 42, engine), args, train_dataset=Plain(), eval_dataset=Plain()
    )


@pytest.mark.parametrize("engine", ["native", "generic"])
def test_an_adapters_own_head_and_embedding_stay_when_it_goes_on(
    engine: str, own_head: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    base, adapter, _ = own_head
    trainer = going_on(base, adapter, tmp_path / "out", engine)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    expected, found = others(adapter), others(tmp_path / "saved")
    assert found.keys() == expected.keys() == ALONG
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    merge_adapter(tmp_path / "saved", tmp_path / "merged", base)
    merged = ours(tmp_path / "of merged", Plain(), Plain(), module=fastsft.CausalLM.from_pretrained(
        str(tmp_path / "merged")
    ))  # fmt: skip
    assert merged.evaluate()["eval_loss"] == pytest.approx(trainer.evaluate()["eval_loss"], abs=1e-4)


def test_a_checkpoint_has_the_adapters_own_head(own_head: tuple[Path, Path, Any], tmp_path: Path) -> None:
    """So the run goes on from it also where the adapter that it began with is no longer named."""
    base, adapter, _ = own_head
    flags: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole = going_on(base, adapter, tmp_path / "out", **flags)
    whole.train()
    args = copy.copy(whole.args)
    rest = fastsft.Trainer(str(base), args, train_dataset=Plain(), eval_dataset=Plain(), peft_config=config())
    rest.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert rest.evaluate()["eval_loss"] == whole.evaluate()["eval_loss"]
    rest.save_model(str(tmp_path / "saved"))
    assert others(tmp_path / "saved").keys() == ALONG


def test_bfloat16_stays(own_head: tuple[Path, Path, Any], tmp_path: Path) -> None:
    base, _, made = own_head
    made.bfloat16().save_pretrained(tmp_path / "narrow", save_embedding_layers=True)
    trainer = going_on(base, tmp_path / "narrow", tmp_path / "out")
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    expected = others(tmp_path / "narrow")
    assert all(torch.equal(value, expected[name]) for name, value in others(tmp_path / "saved").items())


def test_another_vocabulary_is_named_with_the_way_out(tmp_path: Path) -> None:
    base = directory(tmp_path / "base")
    get_peft_model(resized(base, 1), config()).save_pretrained(tmp_path / "adapter")
    lora = LoraArguments(lora=True, lora_weight_path=str(tmp_path / "adapter"))
    expected = (
        rf"adapter_model.safetensors: .* expected shape \[{VOCABULARY}, 16\] of the base model .*/base, got"
    )
    with pytest.raises(ValueError, match=rf"{expected} \[{ROWS}, 16\]: .*resize_token_embeddings\({ROWS}\)"):
        open_model(str(base), lora, None, 42)
