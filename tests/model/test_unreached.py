"""Parameters that no pass calls: zero gradients, and weights that stay, as with transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import rows_run
from engines import train_step
from families import passed, published
from fastsft.arguments import TrainingArguments
from fastsft.model.engine_choice import open_model
from fastsft.trainer import Trainer
from generic_engines import (
    VOCAB,
    by_files,
    dataset_of,
    generic_engine,
    library_loss,
    library_model,
    random_rows,
)
from ranks import run_ranks
from vision_text_models import vision_text_model

SMALL = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ROWS = random_rows([9, 5, 12, 7])
WEIGHT = 0.05


def composite() -> Any:
    """A language model with a vision tower, as transformers makes it of a whole Gemma 3 configuration."""
    config = vision_text_model("gemma3").config.to_dict()
    return library_model("gemma3", **{key: config[key] for key in ("text_config", "vision_config")})


def of_torch(model: Any, batches: list[Any]) -> dict[str, torch.Tensor]:
    """Gradients by autograd; zeros where it has none."""
    model.zero_grad()
    for rows in batches:
        count = sum(end - begin for _, (begin, end) in rows)
        (library_loss(model, rows, 1 / count) * (count * WEIGHT)).backward()
    found = {
        name: torch.zeros_like(each) if each.grad is None else each.grad
        for name, each in model.named_parameters()
    }
    return by_files(model, found)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("packs", [False, True])
def test_gradients_of_a_tower_that_no_row_reaches_are_zero(packs: bool, recompute: bool) -> None:
    model = composite().train()
    engine = generic_engine(model, packs=packs, recompute=recompute)
    expected = of_torch(model, [[row] for row in ROWS])
    for _ in range(2):  # a second pass finds the memory of the first
        _, found = engine.gradients(dataset_of(ROWS), np.arange(4), np.full(4, WEIGHT))
        for name, value in expected.items():
            assert (found[name] - value).norm() <= 1e-5 * value.norm(), name
    assert not any(value.any() for name, value in expected.items() if "vision" in name)


def test_micro_batches_add_nothing_to_such_gradients() -> None:
    model = composite().train()
    engine = generic_engine(model)
    groups = [np.arange(2), np.arange(2, 4)]
    result = train_step(engine, dataset_of(ROWS), groups, [np.full(2, WEIGHT)] * 2, learning_rate=1e-3)
    gradients = of_torch(model, [[row] for row in ROWS]).values()
    norm = torch.stack([each.norm() for each in gradients]).norm()
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-5)


def with_more(seed: int = 0) -> Any:
    """A GPT-2 with a linear and an embedding that its forward does not know."""
    model = library_model("gpt2", seed, **GPT2, **DROPOUT)
    torch.manual_seed(1)
    model.transformer.extra = torch.nn.Linear(32, 32)
    model.transformer.images = torch.nn.Embedding(7, 32)
    return model


def trained(run: Any, model: Any, directory: Path, **more: Any) -> dict[str, torch.Tensor]:
    run(rows_run.plain_items(), directory, model, max_steps=3, weight_decay=0.1, **more)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("optim", ["adamw_torch", "adafactor"])
def test_weights_of_a_given_model_are_those_of_the_trainer(optim: str, tmp_path: Path) -> None:
    ours = trained(rows_run.ours, with_more(), tmp_path / "ours", optim=optim)
    theirs = trained(rows_run.theirs, with_more(), tmp_path / "theirs", optim=optim)
    before = with_more().state_dict()
    for name, value in theirs.items():
        alone = "extra" in name or "images" in name
        assert torch.equal(value, before[name]) == alone, name
        close = (ours[name] - value).abs().max() < 1e-4 or name.endswith("c_attn.bias")  # of keys: noise
        assert torch.equal(ours[name], value) if alone else close, name


def on_rank(groups: dict[str, str], directory: str) -> dict[str, torch.Tensor]:
    return trained(rows_run.ours, with_more(), Path(directory))


def test_two_ranks_leave_them_alone(tmp_path: Path) -> None:
    before = with_more().state_dict()
    for weights in run_ranks(2, on_rank, str(tmp_path), launched=True):
        assert all(torch.equal(weights[name], before[name]) for name in before if "extra" in name)
        assert not torch.equal(weights["transformer.wte.weight"], before["transformer.wte.weight"])


# transformers 4 lacks the second one, and has other names in memory than in files for the first one.
@pytest.fixture(params=["fuyu", "deepseek_v32"] if "deepseek_v32" in CONFIG_MAPPING_NAMES else [])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of a model with an embedding of images, or with indexers that choose tokens."""
    own = ("model_type", "transformers_version")
    settings = {key: value for key, value in passed(published(request.param)).items() if key not in own}
    library_model(request.param, **settings).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def of_directory(directory: Path, output: Path, adapters: LoraConfig | None = None) -> Trainer:
    """After three steps with weight decay."""
    flags = {**rows_run.options(output, max_steps=3, weight_decay=0.1), "report_to": "none"}
    items = rows_run.plain_items()
    trainer = Trainer(str(directory), TrainingArguments(**flags), train_dataset=items, peft_config=adapters)
    trainer.train()
    return trainer


def test_weights_of_a_directory_are_those_of_the_trainer(directory: Path, tmp_path: Path) -> None:
    trainer = of_directory(directory, tmp_path / "ours")
    assert "no pass over text reaches model." in trainer.model.engine_words
    trainer.save_model(str(tmp_path / "saved"))
    opened = transformers.AutoModelForCausalLM.from_pretrained
    ours = opened(tmp_path / "saved", dtype=torch.float32).state_dict()
    theirs = trained(rows_run.theirs, opened(directory, dtype=torch.float32), tmp_path / "theirs")
    before = opened(directory, dtype=torch.float32).state_dict()
    alone = [name for name in before if torch.equal(theirs[name], before[name])]
    assert any("vision_embed_tokens" in name or "indexer" in name for name in alone)
    for name, value in theirs.items():
        if name in alone:
            assert torch.equal(ours[name], value), name
        else:
            assert (ours[name] - value).norm() < 1e-3 * value.norm() + 1e-4, name


def test_adapters_of_such_linears_stay_as_they_were_drawn(directory: Path, tmp_path: Path) -> None:
    linears = r".*(vision_embed_tokens|wq_b|q_proj|q_b_proj|query_key_value)"
    trainer = of_directory(directory, tmp_path, LoraConfig(r=4, target_modules=linears))
    values, first = trainer.engine.trained_parameters(), dict(trainer.model.initial)
    alone = {name for name in values if torch.equal(values[name], first[name])}
    assert alone == {name for name in values if "vision_embed_tokens" in name or "indexer" in name}
    assert alone and len(alone) < len(values)


def test_a_trial_that_fails_is_named(tmp_path: Path) -> None:
    own = ("model_type", "transformers_version")  # its class asks for a default language, which files lack
    settings = {key: value for key, value in passed(published("xmod")).items() if key not in own}
    library_model("xmod", **settings).save_pretrained(tmp_path)
    words = open_model(str(tmp_path)).engine_words
    assert (
        "a trial of which parts text reaches failed, and weight decay moves the other parts, too: " in words
    )
    assert "Input language unknown" in words
