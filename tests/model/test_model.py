"""CausalLM: what it reads, and the engines it makes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft.arguments import TrainingArguments
from fastsft.model.causal_lm import CausalLM, model_directory
from fastsft.model.model_config import ModelConfig
from fastsft.runtime import messages as notices
from fastsft.trainer import Trainer
from saving_run import Conversations
from tiny_models import weights_of, write_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


def make_trainer(model: CausalLM, output: Path, **options: Any) -> Trainer:
    flags = {
        "output_dir": str(output), "use_cpu": True, "max_steps": 2, "learning_rate": 0.01,
        "save_strategy": "no", "model_max_length": 32, "disable_tqdm": True, **options,
    }  # fmt: skip
    return Trainer(model, args=TrainingArguments(**flags), train_dataset=Conversations())


def weights(model: CausalLM) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.engine.named_parameters().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize("change", [{}, {"bf16": True}, {"model_max_length": 48}])
def test_second_trainer_has_the_trained_weights_and_a_fresh_optimizer(
    source: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    model = CausalLM.from_pretrained(str(source))
    first = make_trainer(model, tmp_path / "first")
    first.train()
    first.save_model()
    before = weights(model)
    second = make_trainer(model, tmp_path / "second", **change)
    assert second.engine is first.engine and second.engine.step_count == 0
    assert same(weights(model), before)

    # As a run that starts from the files of the first, to the last bit.
    assert same(weights_of(tmp_path / "first"), before)
    third = make_trainer(CausalLM.from_pretrained(str(tmp_path / "first")), tmp_path / "third", **change)
    second.train()
    third.train()
    assert not same(weights(model), before)
    assert same(weights(model), weights(third.model))


def test_untouched_engine_is_kept_unless_the_options_change(source: Path, tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(str(source))
    engine = make_trainer(model, tmp_path).engine
    model.config.use_cache = False
    assert make_trainer(model, tmp_path).engine is engine
    assert make_trainer(model, tmp_path, bf16=True).engine is not engine


@pytest.mark.parametrize("content", ["{", "[1]", "", '"text"'])
def test_broken_config_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object") as caught:
        CausalLM.from_pretrained(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_unknown_hub_name_says_that_no_directory_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def missing(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("cannot reach the hub\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
    with pytest.raises(ValueError) as caught:
        model_directory("models/llama-typo")
    path = Path("models/llama-typo").absolute()
    assert str(caught.value) == (
        f"--model_name_or_path models/llama-typo: no such directory ({path}), and not found on the hub: "
        "the hub was not reached, and no copy is in the cache; check the network, or name a local copy"
    )


def test_attention_dropout_is_refused_for_training(source: Path, tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(str(source))
    make_trainer(model, tmp_path)
    config = ModelConfig({**model.config, "attention_dropout": 0.1})
    with pytest.raises(ValueError, match=r"config\.json: attention_dropout is 0\.1.*set it to 0\.0"):
        make_trainer(CausalLM(model.source_directory, config), tmp_path)
    args = TrainingArguments(str(tmp_path), use_cpu=True, model_max_length=32)
    assert Trainer(CausalLM(model.source_directory, config), args=args).engine is not None


@pytest.mark.parametrize(
    "named", [None, "LlamaDecoderLayer", "Qwen2DecoderLayer", "LlamaDecoderLayer,Embedding"]
)
def test_another_models_layer_class_is_named(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str | None
) -> None:
    notices._said.clear()
    with caplog.at_level(logging.WARNING, "fastsft"):
        make_trainer(
            CausalLM.from_pretrained(str(source)), tmp_path, fsdp_transformer_layer_cls_to_wrap=named
        )
    wrong = {"Qwen2DecoderLayer": "Qwen2DecoderLayer", "LlamaDecoderLayer,Embedding": "Embedding"}.get(
        named or ""
    )
    expected = f"{wrong} is not the decoder layer of this model (LlamaDecoderLayer)"
    assert (expected in caplog.text) if wrong else ("decoder layer" not in caplog.text)
