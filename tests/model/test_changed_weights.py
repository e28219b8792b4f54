"""Weights of a given model that a script changes before train(), and what it cannot have of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from altered_runs import load, our_losses, ours, their_losses
from called_back_run import call_the_model
from fastsft.callbacks import TrainerCallback
from fastsft.model.causal_lm import CausalLM
from ranks import run_ranks


def halved(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(0.5)


def through_data(model: Any) -> None:
    model.lm_head.weight.data *= 0.5


def replaced(model: Any) -> None:
    old = model.model.layers[1].self_attn.q_proj.weight
    model.model.layers[1].self_attn.q_proj.weight = torch.nn.Parameter(old.detach() * 0.5)


@pytest.mark.parametrize("change", [halved, through_data, replaced])
def test_a_change_after_the_trainer_was_made_counts(change: Any, tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)
    change(first)
    expected = their_losses(first, tmp_path)
    trainer = ours(second, tmp_path)
    change(second)
    assert our_losses(trainer) == pytest.approx(expected, rel=1e-5)


class Changing(TrainerCallback):
    """Changes the model at an event."""

    def __init__(self, event: str) -> None:
        setattr(self, event, lambda *_, model, **__: halved(model.module))


def test_a_callback_that_changes_weights_within_a_step_is_refused(tmp_path: Path) -> None:
    trainer = ours(load(tmp_path), tmp_path)
    trainer.add_callback(Changing("on_pre_optimizer_step"))
    with pytest.raises(ValueError, match=r"changed model\.layers\.0\.mlp\.up_proj\.weight .*on_pre_opt"):
        trainer.train()


class Clipping(transformers.TrainerCallback):
    """Of a script: looks for gradients."""

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Nothing."""


def test_callbacks_of_gradients_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = ours(load(tmp_path), tmp_path)
    trainer.add_callback(Clipping())
    trainer.train()
    told = capsys.readouterr().out
    assert "callbacks (Clipping): the model that was given has no gradients" in told
    assert "to ask for one there is refused" in told


class Calling(transformers.TrainerCallback):
    """Of a script: looks at a loss of its own after each step, once with gradients."""

    def __init__(self, *, gradients: bool = False) -> None:
        self.losses: list[float] = []
        self.expected: list[float] = []
        self.gradients = gradients

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        ids = torch.arange(8).reshape(1, 8)
        with torch.set_grad_enabled(self.gradients):
            self.losses.append(model(input_ids=ids, labels=ids).loss.item())
            self.expected.append(model.module(input_ids=ids, labels=ids).loss.item())


def test_the_model_can_be_called(tmp_path: Path) -> None:
    trainer, calling = ours(load(tmp_path), tmp_path), Calling()
    ids = torch.arange(8).reshape(1, 8)
    before = trainer.model(input_ids=ids, labels=ids).loss.item()
    trainer.add_callback(calling)
    trainer.train()
    assert len(calling.losses) > 1
    assert calling.losses == calling.expected
    assert before != calling.losses[0] != calling.losses[-1]
    after = trainer.model(input_ids=ids, labels=ids).loss
    assert after.item() == calling.losses[-1]
    assert after.requires_grad


def test_a_call_with_gradients_while_training_is_refused(tmp_path: Path) -> None:
    trainer = ours(load(tmp_path), tmp_path)
    trainer.add_callback(Calling(gradients=True))
    with pytest.raises(TypeError, match=r"call it within torch\.no_grad\(\)"):
        trainer.train()


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("world_size, fsdp", [(1, "full_shard"), (2, ""), (2, "full_shard")])
def test_a_call_where_ranks_hold_shards_is_refused(
    tmp_path: Path, world_size: int, fsdp: str, adapters: bool
) -> None:
    ranks = run_ranks(world_size, call_the_model, tmp_path, fsdp, adapters, launched=True, seconds=100)
    for seen, after, expected in ranks:
        assert after == expected
        if world_size == 2 and fsdp:
            assert all("2 ranks hold its weights in shards" in said for said in seen)
            assert all("trainer.evaluate() and trainer.predict()" in said for said in seen)
        else:
            assert seen[0] != seen[1] == after
    assert len({after for _, after, _ in ranks}) == 1


def test_a_model_of_a_directory_cannot_be_called(tmp_path: Path) -> None:
    load(tmp_path).save_pretrained(tmp_path / "files")
    model = CausalLM.from_pretrained(str(tmp_path / "files"))
    with pytest.raises(TypeError, match=r"cannot be called: trainer\.evaluate\(\)"):
        model(input_ids=torch.ones(1, 4))


def test_a_model_without_loss_arguments_is_refused(tmp_path: Path) -> None:
    model = load(tmp_path)
    model.accepts_loss_kwargs = False
    with pytest.raises(ValueError, match=r"model\.accepts_loss_kwargs is False"):
        ours(model, tmp_path)


def test_a_patched_trainer_of_transformers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.Trainer, "compute_loss", lambda *_, **__: 0)
    with pytest.raises(ValueError, match=r"transformers\.Trainer\.compute_loss was replaced by"):
        ours(load(tmp_path), tmp_path).train()
