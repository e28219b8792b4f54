"""Schedule and data loader that callbacks read: values and events are those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from trainer_pairs import Plain, losses, ours, theirs

EVENTS = [name for name in dir(transformers.TrainerCallback) if name.startswith("on_")]
BASE: dict[str, Any] = {"gradient_accumulation_steps": 2, "warmup_steps": 1}


class Reader(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.groups: list[Any] = []


def _reads(event: str) -> Any:
    def read(self: Reader, args: Any, state: Any, control: Any, **given: Any) -> None:
        schedule, loader = given["lr_scheduler"], given["train_dataloader"]
        rates = None if schedule is None else schedule.get_last_lr()
        shape = (
            None
            if loader is None
            else (len(loader), loader.batch_size, loader.total_batch_size, len(loader.dataset))
        )
        evaluated = given["eval_dataloader"]
        batches = None if evaluated is None else (len(evaluated), len(evaluated.dataset))
        self.seen.append((event, state.global_step, rates, shape, batches))
        groups = () if given["optimizer"] is None else given["optimizer"].param_groups
        names = ("lr", "initial_lr", "eps", "weight_decay")
        self.groups += [[group.get(name, 0.0), *group["betas"]] for group in groups for name in names]

    return read


for name in EVENTS:
    setattr(Reader, name, _reads(name))


@pytest.mark.parametrize(
    "flags",
    [
        {"lr_scheduler_type": "cosine"},
        {"lr_scheduler_type": "linear", "max_steps": 3, "per_device_train_batch_size": 3},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
         "learning_rate": 0.3},
    ],
    ids=["cosine", "linear", "plateau"],
)  # fmt: skip
def test_each_event_shows_what_it_shows_in_the_original(tmp_path: Path, flags: dict[str, Any]) -> None:
    found, groups = [], []
    for make in (theirs, ours):
        given = {**BASE, "eval_strategy": "steps", "eval_steps": 1, **flags}
        trainer, reader = make(tmp_path / make.__name__, Plain(9), Plain(5), **given), Reader()
        trainer.add_callback(reader)
        trainer.evaluate()
        trainer.train()
        trainer.evaluate()
        if flags["lr_scheduler_type"] != "reduce_lr_on_plateau":
            trainer.train()
        found.append(reader.seen)
        groups.append(reader.groups)
    for mine, judge in zip(groups[1], groups[0], strict=True):
        assert mine == pytest.approx(judge, rel=1e-12)
    assert [entry[:2] for entry in found[1]] == [entry[:2] for entry in found[0]]
    for ours_saw, theirs_saw in zip(found[1], found[0], strict=True):
        assert ours_saw[3:] == theirs_saw[3:], theirs_saw
        assert ours_saw[2] == (theirs_saw[2] and pytest.approx(theirs_saw[2], rel=1e-12)), theirs_saw


def write_rate(state: Any, given: Any) -> None:
    given["lr_scheduler"].base_lrs = [1.0]


def step_rate(state: Any, given: Any) -> None:
    given["lr_scheduler"].step()


def write_loader(state: Any, given: Any) -> None:
    given["train_dataloader"].batch_size = 3


def read_loader(state: Any, given: Any) -> None:
    next(iter(given["train_dataloader"]))


def write_group(state: Any, given: Any) -> None:
    for group in given["optimizer"].param_groups:
        group["lr"] = 0.1


def zero_gradients(state: Any, given: Any) -> None:
    given["optimizer"].zero_grad()


def count_step(state: Any, given: Any) -> None:
    state.global_step += 1


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (write_rate, r"^lr_scheduler\.base_lrs cannot be set .*lr_scheduler_type"),
        (write_group, r"^optimizer\.param_groups\[\.\.\.\]\['lr'\] cannot be set .*learning_rate"),
        (zero_gradients, r"^optimizer\.zero_grad cannot be called .*transformers' Trainer"),
        (step_rate, r"^lr_scheduler\.step cannot be called .*lr_scheduler_type"),
        (write_loader, r"^train_dataloader\.batch_size cannot be set .*get_train_dataloader"),
        (read_loader, r"^train_dataloader cannot be read .*get_train_dataloader"),
        (count_step, r"^Acts\.on_step_end set state\.global_step from 1 to 2: .*max_steps"),
    ],
)
def test_writes_are_refused(tmp_path: Path, act: Callable[[Any, Any], None], message: str) -> None:
    class Acts(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            act(state, given)

    trainer = ours(tmp_path, Plain())
    trainer.add_callback(Acts())
    with pytest.raises(ValueError, match=message) as error:
        trainer.train()
    assert "\n" not in str(error.value)
    trainer.remove_callback(Acts)
    assert len(losses(trainer)) == 8


@pytest.mark.parametrize("name", ["clip_grad_norm_", "backward"])
def test_the_accelerator_takes_no_attributes(tmp_path: Path, name: str) -> None:
    trainer = ours(tmp_path, Plain())
    with pytest.raises(ValueError, match=rf"^Trainer\.accelerator\.{name} was set .*max_grad_norm"):
        setattr(trainer.accelerator, name, lambda *_, **__: None)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain())
    trainer.train()
    schedule = trainer.lr_scheduler
    assert trainer.lr_scheduler.get_last_lr() == schedule.get_last_lr()
    assert trainer.optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0]
    with pytest.raises(KeyError, match=r"param_groups of the optimizer have no params here"):
        trainer.optimizer.param_groups[0].get("params")
    with pytest.raises(AttributeError, match=r"optimizer has no state here; it has param_groups"):
        _ = trainer.optimizer.state
    assert not hasattr(schedule, "base_lrs")
    with pytest.raises(AttributeError, match=r"lr_scheduler has no base_lrs here; it has get_last_lr\(\)"):
        _ = schedule.base_lrs
