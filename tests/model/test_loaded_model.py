"""A model of transformers handed to the Trainer: trained, given back, saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
)

from fastsft.arguments import TrainingArguments
from fastsft.model.engine_choice import as_model
from fastsft.runtime import messages as notices
from fastsft.trainer import Trainer
from loaded_model_run import train_to_the_best
from native_families import CONFIGS
from ranks import run_ranks
from saving_run import Conversations
from tiny_models import weights_of, write_model


def make_trainer(model: Any, output: Path, **options: Any) -> Trainer:
    flags = {
        "output_dir": str(output), "use_cpu": True, "max_steps": 2, "learning_rate": 0.01,
        "save_strategy": "no", "model_max_length": 32, "disable_tqdm": True, "plot_loss": False, **options,
    }  # fmt: skip
    return Trainer(model=model, args=TrainingArguments(**flags), train_dataset=Conversations())


@pytest.mark.covering
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_callers_object_is_trained(
    tmp_path: Path, kind: str, dtype: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_said", set())
    directory = write_model(tmp_path / "model", kind, dtype)
    module = AutoModelForCausalLM.from_pretrained(directory, torch_dtype=getattr(torch, dtype))
    if as_model(module).engine_kind == "generic":
        pytest.skip("transformers 5 builds Gemma of other modules: test_a_given_gemma_of_transformers_5")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer, beside = make_trainer(module, tmp_path / "a"), make_trainer(str(directory), tmp_path / "b")
    assert trainer.train().training_loss == beside.train().training_loss
    told = "the model was given with bfloat16 parameters: float32 masters of them are trained"
    assert (told in caplog.text) == (dtype == "bfloat16")
    trained = beside.model.engine.named_parameters()
    for name, parameter in module.named_parameters():
        assert parameter.dtype == getattr(torch, dtype)
        assert torch.equal(parameter, trained[name].to(parameter.dtype))
        assert not torch.equal(parameter, before[name])
    if CONFIGS[kind].get("tie_word_embeddings"):
        assert module.lm_head.weight is module.model.embed_tokens.weight
    ids = torch.tensor([[5, 9, 33, 2]])
    trainer.save_model()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "a", torch_dtype=getattr(torch, dtype))
    assert torch.equal(module.eval()(ids).logits, saved(ids).logits)
    assert module.generate(ids, max_new_tokens=4, do_sample=False).shape[1] > 4
    trainer.model.save_pretrained(tmp_path / "c")  # scripts save so as well: it is the caller's object
    assert all(
        torch.equal(value, weights_of(tmp_path / "c")[name])
        for name, value in weights_of(tmp_path / "a").items()
    )
    assert trainer.model.generation_config is module.generation_config


@pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="transformers 4 has the modules that are checked"
)
@pytest.mark.parametrize("kind", ["gemma2", "gemma3"])
def test_a_given_gemma_of_transformers_5(kind: str, tmp_path: Path) -> None:
    """The generic engine trains it; of a directory the native one, without Gemma 2's bound of scores."""
    directory = write_model(tmp_path / "model", kind, "float32")
    module = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    given, native = make_trainer(module, tmp_path / "a"), make_trainer(str(directory), tmp_path / "b")
    assert (given.model.engine_kind, native.model.engine_kind) == ("generic", "native")
    if kind == "gemma2":
        given.train()
        return
    assert given.train().training_loss == pytest.approx(native.train().training_loss, abs=1e-4)
    trained = native.model.engine.named_parameters()
    for name, parameter in module.named_parameters():
        assert (parameter - trained[name]).norm() < 1e-2 * trained[name].norm(), name


def test_a_model_that_no_directory_holds(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=70, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    module = LlamaForCausalLM(config)
    trainer = make_trainer(module, tmp_path)
    assert trainer.model.config.use_cache is False
    trainer.train()
    module.config.use_cache = True
    trainer.save_model()
    written = json.loads((tmp_path / "config.json").read_text())
    assert written.get("use_cache", True) is True and written["torch_dtype"] == "float32"
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    kept = weights_of(tmp_path)
    assert all(torch.equal(kept[name], value) for name, value in module.named_parameters())
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), module.parameters(), strict=True))


@pytest.mark.thorough
def test_a_compiled_model_is_the_one_inside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_said", set())
    module = LlamaForCausalLM.from_pretrained(write_model(tmp_path / "model", "untied"))
    trainer = make_trainer(torch.compile(module), tmp_path / "out")
    assert trainer.model.module is module
    assert "torch.compile of the model has no effect" in caplog.text


def test_training_again_goes_on_from_the_trained_weights(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", "untied")
    module = LlamaForCausalLM.from_pretrained(directory)
    make_trainer(module, tmp_path / "a").train()
    again = make_trainer(module, tmp_path / "b")
    engine = again.model.engine.named_parameters()
    assert all(torch.equal(engine[name], value) for name, value in module.named_parameters())


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=70, hidden_size=32, intermediate_size=56, num_hidden_layers=1, num_attention_heads=4
    )
    with pytest.raises(ValueError, match=r"causal language model.*got LlamaForSequenceClassification, which"):
        make_trainer(LlamaForSequenceClassification(config), tmp_path)
    with pytest.raises(ValueError, match=r"causal language model.*got LlamaModel, which"):
        make_trainer(LlamaModel(config), tmp_path)
    small = GPT2Config(vocab_size=70, n_positions=32, n_embd=32, n_layer=1, n_head=2, pad_token_id=0)
    with pytest.raises(ValueError, match=r"causal language model.*got GPT2ForSequenceClassification, which"):
        make_trainer(GPT2ForSequenceClassification(small), tmp_path)
    with pytest.raises(ValueError, match=r"got DataParallel; take a wrapper off \(model\.module of"):
        make_trainer(torch.nn.DataParallel(LlamaForCausalLM(config)), tmp_path)
    frozen = LlamaForCausalLM(config)
    frozen.model.embed_tokens.requires_grad_(False)
    with pytest.raises(ValueError, match=r"model\.embed_tokens\.weight is frozen"):
        make_trainer(frozen, tmp_path)
    with torch.device("meta"):
        absent = LlamaForCausalLM(config)
    with pytest.raises(ValueError, match=r"on meta; load the model"):
        make_trainer(absent, tmp_path)


def test_every_rank_gets_the_best_weights(tmp_path: Path) -> None:
    directory, output = write_model(tmp_path / "model", "tied"), tmp_path / "out"
    first, second = run_ranks(2, train_to_the_best, directory, output, launched=True)
    step, metric, again = first["best"]
    assert first["best"] == second["best"] and metric == again
    assert 0 < step < 4 and [path.name for path in output.glob("checkpoint-*")] == [f"checkpoint-{step}"]
    loaded = LlamaForCausalLM.from_pretrained(output)
    reply = loaded.generate(torch.tensor([[5, 9, 33]]), max_new_tokens=6, do_sample=False)
    assert torch.equal(first["reply"], reply) and torch.equal(second["reply"], reply)
    saved = weights_of(output)
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name])
        assert torch.equal(value, saved.get(name, saved["model.embed_tokens.weight"]))
