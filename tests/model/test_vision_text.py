"""Directories of vision-text models: the text decoder is trained as transformers' Trainer does it on text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from fastsft.arguments import TrainingArguments
from fastsft.lora.merge import merge_adapter
from fastsft.model.engine_choice import open_model
from fastsft.trainer import Trainer
from vision_text_models import FAMILIES, has_family, saved_model

_OF_SAVE = ("torch_dtype", "dtype", "_name_or_path")
_IDS = torch.randint(3, 80, (8, 17), generator=torch.Generator().manual_seed(1))  # none of an image
ROWS = [{"input_ids": ids, "labels": torch.cat([torch.full((2,), -100), ids[2:]])} for ids in _IDS]
FLAGS: dict[str, Any] = {
    "use_cpu": True, "per_device_train_batch_size": 4, "max_steps": 3, "save_steps": 2, "logging_steps": 1,
    "save_strategy": "steps", "learning_rate": 1e-3, "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


@pytest.fixture(params=[family for family in FAMILIES if has_family(family)])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return saved_model(request.param, tmp_path / "model")


def ours(model: Path, output: Path, **more: Any) -> Trainer:
    resume, adapters = more.pop("resume_from_checkpoint", None), more.pop("adapters", None)
    args = TrainingArguments(output_dir=str(output), **{**FLAGS, "plot_loss": False, **more})
    trainer = Trainer(model=str(model), args=args, train_dataset=ROWS, peft_config=adapters)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def theirs(model: Path, output: Path, adapters: LoraConfig | None = None) -> Any:
    """transformers' Trainer on the whole model, with text alone: what gets no gradient stays as it is."""
    whole = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
    config, trained = whole.config, whole
    if config.model_type == "llama4":  # transformers 5.24 fails with text alone on the whole model
        trained = whole.language_model
    if adapters is not None:
        torch.manual_seed(42)
        trained = get_peft_model(whole, adapters)
    args = transformers.TrainingArguments(output_dir=str(output), **FLAGS, data_seed=42)

    def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        if config.model_type.startswith(("gemma3", "gemma4")):  # asks for the places of images
            kinds = {"gemma3": ["token_type_ids"]}.get(config.model_type, ["mm_token_type_ids"])
            batch |= {name: torch.zeros_like(batch["input_ids"]) for name in kinds}
        return batch

    trainer = transformers.Trainer(model=trained, args=args, train_dataset=ROWS, data_collator=collate)
    trainer.train()
    trainer.model = trained if adapters is not None else whole  # which is what is saved
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: value for file in folder.glob("model*.safetensors") for name, value in load_file(file).items()
    }


def test_curve_of_the_whole_model_whose_rest_is_saved_as_it_was(model: Path, tmp_path: Path) -> None:
    mine = ours(model, tmp_path / "out")
    mine.save_model(str(tmp_path / "saved"))
    other = theirs(model, tmp_path / "theirs")
    assert losses(mine) == pytest.approx(losses(other), rel=2e-5)

    before, after = weights(model), weights(tmp_path / "saved")
    assert {name: (each.dtype, each.shape) for name, each in after.items()} == {
        name: (each.dtype, each.shape) for name, each in before.items()
    }
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    other.save_model(str(tmp_path / "other"))
    expected = weights(tmp_path / "other")
    moved = {name for name in before if not torch.equal(before[name], expected[name])}
    assert changed == moved
    for name in changed:
        step = (expected[name] - before[name]).norm()
        assert (after[name] - expected[name]).norm() < 2e-2 * step, name
    check_opens_as_it_did(model, tmp_path / "saved")


def check_opens_as_it_did(model: Path, saved: Path) -> None:
    opened, info = AutoModelForImageTextToText.from_pretrained(saved, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    configs = [AutoConfig.from_pretrained(folder) for folder in (model, saved)]
    assert type(configs[0]) is type(configs[1])
    assert type(opened).__name__ == configs[1].architectures[0] == configs[0].architectures[0]
    own = [{k: v for k, v in each.to_dict().items() if k not in _OF_SAVE} for each in configs]
    assert own[0] == own[1]
    files = [(folder / "preprocessor_config.json").read_bytes() for folder in (model, saved)]
    assert files[0] == files[1]


def test_checkpoints_are_whole_and_go_on_with_the_same_bits(tmp_path: Path) -> None:
    family = "qwen3_5" if has_family("qwen3_5") else "gemma3"
    model = saved_model(family, tmp_path / "model")
    whole = ours(model, tmp_path / "out")
    checkpoint = tmp_path / "out" / "checkpoint-2"
    check_opens_as_it_did(model, checkpoint)
    again = ours(model, tmp_path / "again", resume_from_checkpoint=str(checkpoint))
    values = again.engine.named_parameters()
    assert all(torch.equal(value, values[name]) for name, value in whole.engine.named_parameters().items())


def test_tensors_keep_types_of_their_own(tmp_path: Path) -> None:
    family = "qwen3_5" if has_family("qwen3_5") else "gemma3"
    model = saved_model(family, tmp_path / "model", torch.bfloat16)
    tensors = weights(model)
    text = next(name for name in tensors if name.endswith("layers.1.input_layernorm.weight"))
    rest = next(name for name in tensors if "vision" in name or "visual" in name)
    extra = {"mtp.table": torch.arange(7), "mtp.mask": torch.tensor([True, False, True])}
    tensors |= {text: tensors[text].float(), rest: tensors[rest].float(), **extra}
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    trainer = ours(model, tmp_path / "out", max_steps=1)
    for way in ("stream", "parallel"):
        trainer.args.save_mode = way
        for shard in ("5GB", "20KB"):
            trainer.args.max_shard_size = shard
            saved = tmp_path / f"saved-{way}-{shard}"
            trainer.save_model(str(saved))
            found = weights(saved)
            assert {name: each.dtype for name, each in found.items()} == {
                name: each.dtype for name, each in tensors.items()
            }
            assert all(torch.equal(found[name], value) for name, value in extra.items())
            assert torch.equal(found[rest], tensors[rest])
            for file in saved.glob("model*.safetensors"):
                with safe_open(file, "pt") as opened:
                    assert list(opened.keys())


def test_the_start_page_says_what_is_trained(tmp_path: Path) -> None:
    family = "qwen3_5" if has_family("qwen3_5") else "gemma3"
    words = open_model(str(saved_model(family, tmp_path / "model"))).engine_words
    assert "the text decoder is trained" in words and "is frozen and saved as it is" in words
    assert ("model.visual" if family == "qwen3_5" else "model.vision_tower") in words


def test_others_are_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "vision_config": {"depth": 1}})
    )
    with pytest.raises(ValueError, match=r"not for text \(vision_config\).* gemma3, .*transformers' Trainer"):
        open_model(str(tmp_path))
    config = {"model_type": "gemma3", "text_config": {}, "vision_config": {"depth": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"--engine native: gemma3 is a vision-text model.*leave --engine out"
    ):
        open_model(str(tmp_path), engine="native")


def test_adapters_are_those_of_peft_and_merge_into_the_whole_model(tmp_path: Path) -> None:
    family = "qwen3_5" if has_family("qwen3_5") else "gemma3"
    model = saved_model(family, tmp_path / "model")
    adapters = LoraConfig(
        r=4, target_modules=r".*language_model.*\.(q_proj|down_proj)", task_type="CAUSAL_LM"
    )
    mine, other = (
        ours(model, tmp_path / "out", adapters=adapters),
        theirs(model, tmp_path / "theirs", adapters),
    )
    assert losses(mine) == pytest.approx(losses(other), rel=2e-5)
    mine.save_model(str(tmp_path / "adapter"))
    other.save_model(str(tmp_path / "other"))
    found, expected = (
        load_file(tmp_path / each / "adapter_model.safetensors") for each in ("adapter", "other")
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() < 1e-2 * value.norm(), name
    merge_adapter(tmp_path / "adapter", tmp_path / "merged", model)
    before, after = weights(model), weights(tmp_path / "merged")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {each for each in before if each.endswith(("q_proj.weight", "down_proj.weight"))
                       and "vi" not in each}  # fmt: skip
    check_opens_as_it_did(model, tmp_path / "merged")
