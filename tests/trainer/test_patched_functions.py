"""Functions of libraries that a script replaced: transformers' Trainer uses them, ours names them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers
import transformers.optimization
import transformers.trainer
from torch.optim import optimizer
from torch.utils.data import SequentialSampler
from torch.utils.data._utils.fetch import _MapDatasetFetcher

import fastsft
from fastsft.originals import trainer_patches as patched_functions
from trainer_pairs import FLAGS as BASE
from trainer_pairs import Plain, check_equal, curve, losses, model, ours, theirs, unrounded

Patch = Callable[[pytest.MonkeyPatch], None]
FLAGS: dict[str, Any] = {"lr_scheduler_type": "cosine", "weight_decay": 0.5}
COSINE = "_get_cosine_schedule_with_warmup_lr_lambda"


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)


def in_trainer(name: str, make: Callable[[Any], Any]) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(transformers.trainer, name, make(getattr(transformers.trainer, name)))

    return apply


def get_scheduler(patch: pytest.MonkeyPatch) -> None:
    old = transformers.get_scheduler
    patch.setattr(
        transformers.trainer, "get_scheduler", lambda name, **given: old("constant", given["optimizer"])
    )


def default_data_collator(old: Any) -> Any:
    def replaced(rows: list[Any]) -> Any:
        batch = old(rows)
        batch["labels"][:, :8] = -100
        return batch

    return replaced


def rate_of_schedule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transformers.optimization, COSINE, lambda step, **given: 1.0)


def entry_of_schedules(patch: pytest.MonkeyPatch) -> None:
    table = transformers.optimization.TYPE_TO_SCHEDULER_FUNCTION
    other = transformers.optimization.get_linear_schedule_with_warmup
    patch.setitem(table, transformers.SchedulerType.COSINE, other)


def clip_of_accelerate(patch: pytest.MonkeyPatch) -> None:
    def clip(self: Any, parameters: Any, norm: float, norm_type: int = 2) -> Any:
        return torch.nn.utils.clip_grad_norm_(list(parameters), 1e-3)

    patch.setattr(accelerate.Accelerator, "clip_grad_norm_", clip)


def clip_of_torch(patch: pytest.MonkeyPatch) -> None:
    old = torch.nn.utils.clip_grad_norm_
    patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, *_, **__: old(parameters, 1e-3))


def step_of_optimizer(patch: pytest.MonkeyPatch) -> None:
    old = torch.optim.AdamW.step

    def step(self: Any, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= 3
        return old(self, closure)

    patch.setattr(torch.optim.AdamW, "step", step)


def hook_of_optimizers(patch: pytest.MonkeyPatch) -> None:
    def hook(self: Any, *_: Any) -> None:
        for group in self.param_groups:
            group["lr"] *= 3

    patch.setitem(optimizer._global_optimizer_pre_hooks, 7, hook)


def fetch(patch: pytest.MonkeyPatch) -> None:
    old = _MapDatasetFetcher.fetch
    patch.setattr(_MapDatasetFetcher, "fetch", lambda self, rows: old(self, [0] * len(rows)))


def class_of_loader(old: Any) -> Any:
    return lambda rows, **given: old(rows, **{**given, "sampler": SequentialSampler(rows)})


def callback_of_all(patch: pytest.MonkeyPatch) -> None:
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            control.should_training_stop = True

    patch.setattr(transformers.trainer, "DEFAULT_CALLBACKS", [transformers.DefaultFlowCallback, Stop])


PATCHES: dict[str, tuple[Patch, str]] = {
    "transformers.trainer.get_scheduler": (get_scheduler, "lr_scheduler_type"),
    "transformers.trainer.set_seed": (
        in_trainer("set_seed", lambda _: lambda seed, *_, **__: torch.manual_seed(99)), "give seed",
    ),
    "transformers.trainer.RandomSampler": (
        in_trainer("RandomSampler", lambda _: lambda rows, **__: SequentialSampler(rows)), "sequential",
    ),
    "torch.utils.data.DataLoader": (
        lambda patch: patch.setattr(
            torch.utils.data, "DataLoader", type("Loader", (torch.utils.data.DataLoader,), {})
        ),
        "sequential",
    ),
    "transformers.trainer.DataLoader": (in_trainer("DataLoader", class_of_loader), "sequential"),
    "transformers.trainer.get_parameter_names": (
        in_trainer("get_parameter_names", lambda _: lambda *_: []), "weight_decay",
    ),
    "transformers.trainer.default_data_collator": (
        in_trainer("default_data_collator", default_data_collator), r"Trainer\(data_collator=",
    ),
    f"transformers.optimization.{COSINE}": (rate_of_schedule, "lr_scheduler_type"),
    'transformers.optimization.TYPE_TO_SCHEDULER_FUNCTION["cosine"]': (
        entry_of_schedules, "lr_scheduler_type",
    ),
    "accelerate.accelerator.Accelerator.clip_grad_norm_": (clip_of_accelerate, "max_grad_norm"),
    "torch.nn.utils.clip_grad_norm_": (clip_of_torch, "max_grad_norm"),
    "torch.optim.AdamW.step": (step_of_optimizer, "learning_rate"),
    "a hook of all optimizers": (hook_of_optimizers, "take it away"),
    "torch.utils.data._utils.fetch._MapDatasetFetcher.fetch": (fetch, "train_dataset"),
    "transformers.trainer.DEFAULT_CALLBACKS": (callback_of_all, r"Trainer\(callbacks="),
}  # fmt: skip


def their_losses(folder: Path, data: Any) -> list[float]:
    """Return transformers' losses with the collator that it chooses itself."""
    args = transformers.TrainingArguments(str(folder), **{**BASE, **FLAGS})
    return losses(transformers.Trainer(model(), args, train_dataset=data))


@pytest.mark.variants(
    "trainer.get_scheduler",
    "nn.utils.clip_grad_norm_",
    "DEFAULT_CALLBACKS",
    "a hook of all",
    "TYPE_TO_SCHEDULER",
    "utils.data.DataLoader",
    "default_data_collator",
)
@pytest.mark.parametrize("name", PATCHES)
def test_a_function_that_changes_the_original_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = their_losses(tmp_path / "before", Plain())
    apply, way_out = PATCHES[name]
    trainer = ours(tmp_path / "ours", Plain(), **FLAGS)
    apply(monkeypatch)
    after = their_losses(tmp_path / "after", Plain())
    assert after != before, "the patch does nothing in the original"
    with pytest.raises(ValueError) as later:
        trainer.train()
    with pytest.raises(ValueError) as at_once:
        ours(tmp_path / "later", Plain(), **FLAGS)
    for error, caller in ((later, "Trainer.train: "), (at_once, "Trainer: ")):
        text = str(error.value)
        assert text.startswith(caller) and name in text and "\n" not in text
        error.match(way_out)
    monkeypatch.undo()
    unrounded(monkeypatch)
    check_equal(losses(ours(tmp_path / "free", Plain(), **FLAGS)), before)


def test_what_the_original_does_not_use_may_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers does not look these functions up: its table has the schedules, and a collator is given."""
    monkeypatch.setattr(transformers.optimization, "get_cosine_schedule_with_warmup", None)
    monkeypatch.setattr(transformers.trainer, "default_data_collator", default_data_collator)
    collator = transformers.default_data_collator
    expected = losses(theirs(tmp_path / "a", Plain(), collator=collator, **FLAGS))
    check_equal(losses(ours(tmp_path / "b", Plain(), collator=collator, **FLAGS)), expected)


def test_the_libraries_as_they_are_hold_every_name(tmp_path: Path) -> None:
    """All names exist, also after a run of transformers, whose first optimizer wraps its class's step."""
    losses(theirs(tmp_path, Plain(), **FLAGS))
    groups = (*patched_functions._LOADING, *patched_functions._COLLATING, *patched_functions._TRAINING)
    for group in groups:
        for name in group.names:
            value = patched_functions._found(group.place, name)
            assert patched_functions._is_original(value, group.package, name.split(".")[-1]), name
    for kind in transformers.SchedulerType:
        args = fastsft.TrainingArguments(str(tmp_path), use_cpu=True)
        args.lr_scheduler_type = kind.value
        patched_functions._check_schedule(args, "Trainer")


def test_libraries_that_nobody_imported_have_nothing_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("transformers", "accelerate")]:
        monkeypatch.delitem(sys.modules, name)
    args = fastsft.TrainingArguments(str(tmp_path), use_cpu=True)
    patched_functions.check_patched_functions(args, "Trainer", training=True, has_collator=False)


def counted(rows: list[Any]) -> Any:
    return {**transformers.default_data_collator(rows), "num_items_in_batch": torch.tensor(3)}


@pytest.mark.parametrize("flags", [{}, {"gradient_accumulation_steps": 3}, {"remove_unused_columns": False}])
def test_a_count_that_a_collator_gives_is_overridden(tmp_path: Path, flags: dict[str, Any]) -> None:
    found = []
    for make in (theirs, ours):
        trainer = make(tmp_path / make.__name__, Plain(), Plain(5), collator=counted, **flags)
        trainer.train()
        trainer.evaluate()
        found.append([*curve(trainer), *curve(trainer, "eval_loss")])
    check_equal(found[1], found[0])


class Ending(Plain):
    """Raises StopIteration at a row, as `next` of a spent iterator does."""

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        if row == 3:
            raise StopIteration
        return super().__getitem__(row)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_raises_stop_iteration(tmp_path: Path, workers: int) -> None:
    expected = losses(theirs(tmp_path / "theirs", Ending(), dataloader_num_workers=workers))
    assert len(expected) < 8, "transformers leaves out the rest of the epoch"
    rows = r"rows? (\d, )?3(, \d)? of the data set: reading it raised StopIteration"
    with pytest.raises(ValueError, match=rows if workers else "^row 3 of the data set: "):
        ours(tmp_path / "ours", Ending(), dataloader_num_workers=workers).train()
    with pytest.raises(ValueError, match="row 3 of the data set"):
        ours(tmp_path / "evaluated", Plain()).evaluate(Ending())
