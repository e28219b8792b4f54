"""Weights of a given model that a script changes are what is saved, as by transformers' Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from altered_runs import FLAGS, load, ours
from edited_weights_run import SAVES, edit_and_save, write_in_training
from fastsft.saving import trainer_save_model_safe
from fastsft.trainer import Trainer
from padded_items import random_items
from ranks import run_ranks
from tiny_models import weights_of, write_model


def theirs(model: Any, folder: Path) -> transformers.Trainer:
    args = transformers.TrainingArguments(str(folder / "theirs"), **FLAGS)
    items = [{name: torch.tensor(value) for name, value in item.items()} for item in random_items()]
    return transformers.Trainer(model, args=args, train_dataset=items)


def halved(trainer: Any) -> None:
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(0.5)


def loaded(trainer: Any) -> None:
    state = {name: torch.full_like(value, 0.25) for name, value in trainer.model.state_dict().items()}
    trainer.model.load_state_dict(state)


def other_data(trainer: Any) -> None:
    head = trainer.model.lm_head.weight
    head.data = torch.flip(head.data, (0,))


def saved_alike(first: Path, second: Path) -> None:
    expected, got = weights_of(first), weights_of(second)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("change", [halved, loaded, other_data])
def test_a_change_before_save_model(change: Any, trained: bool, tmp_path: Path) -> None:
    for make in (theirs, ours):
        trainer = make(load(tmp_path), tmp_path)
        if trained:
            trainer.train()
        change(trainer)
        trainer.save_model()
    saved_alike(tmp_path / "theirs", tmp_path / "ours")


def through_safe(trainer: Trainer) -> None:
    trainer_save_model_safe(trainer)


def through_state_dict(trainer: Trainer) -> None:
    trainer._save(trainer.args.output_dir, state_dict=trainer.model.state_dict())


@pytest.mark.parametrize("save", [through_safe, through_state_dict])
def test_other_ways_of_saving(save: Callable[[Trainer], None], tmp_path: Path) -> None:
    original, trainer = theirs(load(tmp_path), tmp_path), ours(load(tmp_path), tmp_path)
    for each in (original, trainer):
        each.train()
        halved(each)
    original.save_model()
    save(trainer)
    saved_alike(tmp_path / "theirs", tmp_path / "ours")


def test_a_checkpoint_of_the_same_step_is_written_again(tmp_path: Path) -> None:
    original, trainer = theirs(load(tmp_path), tmp_path), ours(load(tmp_path), tmp_path)
    original.train()
    trainer.train()
    first = trainer.save_checkpoint()
    trainer._run.checkpoints.saver.wait()
    before = weights_of(first)["lm_head.weight"]
    for each in (original, trainer):
        halved(each)
    original.save_model()
    path = trainer.save_checkpoint()
    trainer._run.checkpoints.saver.wait()
    saved_alike(tmp_path / "theirs", path)
    assert not torch.equal(weights_of(path)["lm_head.weight"], before)


class Swapping(transformers.TrainerCallback):
    """Looks at the trained weights when training ends, and puts others in, as an average of weights does."""

    def on_train_end(self, *_: Any, model: Any, **__: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.detach().abs() * 0.5)


def test_a_callback_at_the_end_swaps_weights_in(tmp_path: Path) -> None:
    for make in (theirs, ours):
        trainer = make(load(tmp_path), tmp_path)
        trainer.add_callback(Swapping())
        trainer.train()
        trainer.save_model()
    saved_alike(tmp_path / "theirs", tmp_path / "ours")


def test_another_trainer_has_trained_the_same_object(tmp_path: Path) -> None:
    for make, folder in ((theirs, tmp_path / "a"), (ours, tmp_path / "b")):
        model = load(tmp_path)
        first, second = make(model, folder), make(model, folder / "second")
        first.train()
        second.train()
        first.save_model()
    saved_alike(tmp_path / "a" / "theirs", tmp_path / "b" / "ours")


def grown(model: Any) -> None:
    model.resize_token_embeddings(model.config.vocab_size + 3)


def cut(model: Any) -> None:
    model.model.layers = model.model.layers[:1]


@pytest.mark.parametrize(
    ("change", "name"),
    [(grown, r"model\.model\.embed_tokens\.weight"), (cut, r"model\.model\.layers\[1\]")],
)
def test_other_parameters_are_refused(change: Any, name: str, tmp_path: Path) -> None:
    model = load(tmp_path)
    trainer = ours(model, tmp_path)
    trainer.train()
    change(model)
    with pytest.raises(ValueError, match=rf"Trainer\.save_model: expected {name}.*save_pretrained\(\)"):
        trainer.save_model()
    with pytest.raises(ValueError, match=rf"model\.state_dict: expected {name}"):
        trainer.model.state_dict()


def test_what_does_not_change_weights_does_not_hinder_a_save(tmp_path: Path) -> None:
    for make in (theirs, ours):
        model = load(tmp_path)
        trainer = make(model, tmp_path)
        trainer.train()
        model.requires_grad_(False)
        model.register_forward_hook(lambda *_: None)
        trainer.save_model()
    saved_alike(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("fsdp", ["", "full_shard"])
def test_edits_before_a_save(tmp_path: Path, fsdp: str) -> None:
    source = write_model(tmp_path / "model", "untied")
    output = tmp_path / "output"
    ranks: list[dict[str, Any]] = run_ranks(2, edit_and_save, source, output, fsdp, launched=True)
    for name in SAVES:
        got = weights_of(output if name == "safe" else output / name)
        expected = ranks[0]["expected"][name]
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(got[key], value)
    for rank in ranks:
        assert "model.embed_tokens.weight: rank 0 has" in rank["alone"] and "rank 1 has" in rank["alone"]
    seen, trained = ranks[0]["seen"], ranks[0]["trained"]
    assert seen == ranks[1]["seen"]
    if fsdp:  # ranks have shards: the old weights, and a line
        assert seen[0] == seen[1] != trained
    else:
        assert seen[0] != seen[1] == pytest.approx(trained, rel=1e-6)


@pytest.mark.parametrize("fsdp", ["", "full_shard"])
def test_weights_written_on_several_ranks_are_refused(tmp_path: Path, fsdp: str) -> None:
    source = write_model(tmp_path / "model", "untied")
    messages = run_ranks(2, write_in_training, source, tmp_path / "output", fsdp, launched=True)
    assert all("was changed while train() runs on several ranks" in message for message in messages)
