"""Trainer(peft_config=LoraConfig), Trainer(model=LoraConfig), and what a Trainer with adapters does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model

import fastsft
from adapted_runs import config, trained, wrapped
from fastsft import saving
from fastsft.model import CausalLM
from trainer_pairs import FLAGS, WIDTH, Plain, curve, model, ours, theirs, unrounded


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    model().save_pretrained(folder)
    return folder


def with_config(output: Path, base: Any, peft_config: Any = None, **flags: Any) -> fastsft.Trainer:
    values = {"model_max_length": WIDTH, "plot_loss": False, **FLAGS, **flags}
    args = fastsft.TrainingArguments(str(output), **values)
    return fastsft.Trainer(base, args, train_dataset=Plain(), peft_config=peft_config)


def drawn(base: Any) -> Any:
    """As peft draws after the seed of a run."""
    torch.manual_seed(42)
    return get_peft_model(base, config())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    with pytest.MonkeyPatch.context() as patch:
        unrounded(patch)
        trainer = theirs(tmp_path_factory.mktemp("theirs"), Plain(), module=drawn(model()))
        trainer.train()
    return curve(trainer)


def test_a_model_of_transformers_gets_adapters(expected: list[float], tmp_path: Path) -> None:
    module = model()
    torch.manual_seed(42)
    trainer = with_config(tmp_path, module, config())
    trainer.train()
    assert curve(trainer) == pytest.approx(expected, abs=1e-5, rel=0)
    assert type(trainer.model.module).__name__ == "PeftModelForCausalLM"
    assert trainer.model.module.get_base_model() is module


@pytest.mark.parametrize("kind", ["directory", "CausalLM", "named by the config"])
def test_a_directory_gets_adapters(kind: str, base: Path, expected: list[float], tmp_path: Path) -> None:
    given: tuple[Any, ...] = {
        "directory": (str(base), config()),
        "CausalLM": (CausalLM.from_pretrained(str(base)), config()),
        "named by the config": (config(base_model_name_or_path=str(base)),),
    }[kind]
    trainer = with_config(tmp_path, *given)
    trainer.train()
    assert curve(trainer) == pytest.approx(expected, abs=1e-5, rel=0)
    trainer.save_model()
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    assert PeftModel.from_pretrained(model(), tmp_path)


def test_what_is_refused(base: Path, tmp_path: Path) -> None:
    refused: dict[str, tuple[Any, ...]] = {
        "the model has adapters already": (wrapped(), config()),
        "expected peft's LoraConfig, got dict": (str(base), {"r": 8}),
        "peft_type: expected LORA": (
            str(base),
            PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        ),
        "expected the base model in its base_model_name_or_path, got none": (config(),),
        "got peft_config as well": (config(base_model_name_or_path=str(base)), config()),
        "use_rslora|init_lora_weights": (
            str(base),
            LoraConfig(task_type="CAUSAL_LM", init_lora_weights="pissa"),
        ),
    }
    for message, given in refused.items():
        with pytest.raises(ValueError, match=message):
            with_config(tmp_path, *given)


def test_evaluate_and_predict(tmp_path: Path) -> None:
    """Before and after training, next to transformers'."""
    judge = theirs(tmp_path / "theirs", Plain(), Plain(5), module=wrapped())
    trainer = ours(tmp_path / "ours", Plain(), Plain(5), module=wrapped())
    for step in range(2):
        wanted, found = judge.predict(Plain(5)), trainer.predict(Plain(5))
        for row, item in enumerate(Plain(5)):
            length = int(item["attention_mask"].sum())
            logits = wanted.predictions[row, :length]
            error = np.linalg.norm(found.predictions[row, :length] - logits)
            assert error <= (1e-4 if step else 1e-5) * np.linalg.norm(logits)
        loss = judge.evaluate()["eval_loss"]
        assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-5)
        if not step:
            judge.train()
            trainer.train()


SAVING: dict[str, Any] = {
    "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
    "learning_rate": 0.05,
}  # fmt: skip


@pytest.mark.parametrize("only_model", [False, True])
def test_the_best_adapter_at_the_end(only_model: bool, tmp_path: Path) -> None:
    """The losses get worse, so the best checkpoint is an early one; transformers names the same."""
    flags = {**SAVING, "load_best_model_at_end": True, "save_only_model": only_model, "save_total_limit": 2}
    judge = theirs(tmp_path / "theirs", Plain(), Plain(5), module=wrapped(), **flags)
    judge.train()
    module = wrapped()
    trainer = ours(tmp_path / "ours", Plain(), Plain(5), module=module, **flags)
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    assert best.name == Path(judge.state.best_model_checkpoint).name
    kept = {path.name for path in (tmp_path / "ours").glob("checkpoint-*")}
    assert kept == {path.name for path in (tmp_path / "theirs").glob("checkpoint-*")} and best.name in kept
    names = {path.name for path in best.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= names and "model.safetensors" not in names
    assert any("optimizer" in name for name in names) != only_model
    saved = trained(PeftModel.from_pretrained(model(), best, is_trainable=True))
    assert all(torch.equal(value, saved[name]) for name, value in trained(module).items())
    for name, value in trained(judge.model).items():
        assert (saved[name] - value).norm() <= 1e-3 * value.norm(), name


def test_functions_that_save(tmp_path: Path) -> None:
    """FastChat's own, of a fastsft Trainer and of transformers', whose files are peft's."""
    trainer = ours(tmp_path / "ours", Plain(), module=wrapped())
    saving.trainer_save_model_safe(trainer)
    judge = theirs(tmp_path / "theirs", Plain(), module=wrapped())
    with pytest.warns(UserWarning, match="only the adapter of a PEFT model is saved"):
        saving.trainer_save_model_safe(judge)
    found, expected = (
        trained(PeftModel.from_pretrained(model(), tmp_path / name, is_trainable=True))
        for name in ("ours", "theirs")
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_bfloat16_follows_float32(base: Path, tmp_path: Path) -> None:
    exact, narrow = (
        with_config(tmp_path / str(bf16), str(base), config(), bf16=bf16) for bf16 in (False, True)
    )
    for trainer in (exact, narrow):
        trainer.train()
    assert curve(narrow) == pytest.approx(curve(exact), rel=2e-2)
    assert curve(narrow)[-1] < curve(narrow)[0]
    values = narrow.model.state_dict()
    assert all(value.dtype == torch.float32 for value in values.values())


def test_the_state_that_fastchat_gathers() -> None:
    """As FastChat's function does, run from its source: its imports need DeepSpeed."""
    from fastsft.train_lora import get_peft_state_maybe_zero_3

    own = fastchat_function()
    module = wrapped(bias="all")
    named = [*module.named_parameters(), ("model.layers.0.mlp.up_proj.bias", torch.ones(2))]
    for bias in ("none", "all"):
        expected, found = own(named, bias), get_peft_state_maybe_zero_3(named, bias)
        assert list(found) == list(expected) and len(found) > 0
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        assert not any(value.requires_grad for value in found.values())
    with pytest.raises(NotImplementedError):
        own(named, "some")
    with pytest.raises(NotImplementedError):
        get_peft_state_maybe_zero_3(named, "some")


def fastchat_function() -> Any:
    import ast
    import importlib.util

    spec = importlib.util.find_spec("fastchat.train.train_lora")
    assert spec and spec.origin
    tree = ast.parse(Path(spec.origin).read_text())
    kept = [each for each in tree.body if isinstance(each, ast.FunctionDef) and "maybe_zero_3" in each.name]
    space: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), spec.origin, "exec"), space)
    return space["get_peft_state_maybe_zero_3"]
