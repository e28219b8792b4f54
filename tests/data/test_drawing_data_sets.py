"""Data sets that draw random numbers when they are read: the rows that transformers' Trainer would get."""

from __future__ import annotations

import gc
import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import fastsft
from ranks import run_ranks
from trainer_pairs import FLAGS, Drawing, Plain, check_equal, curve, item, losses, model, ours, theirs
from trainer_pairs import unrounded as as_they_are

SOURCES = ["python", "numpy", "torch", "own"]


@pytest.fixture(autouse=True)
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    as_they_are(monkeypatch)


@pytest.mark.covering
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "flags",
    [
        {"num_train_epochs": 4},
        {"gradient_accumulation_steps": 3, "dataloader_drop_last": True},
        {"group_by_length": True, "per_device_train_batch_size": 1},
        {"max_steps": 6, "include_tokens_per_second": True},
        {"eval_strategy": "steps", "eval_steps": 2},
        {"dataloader_num_workers": 2},
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
    ],
)  # fmt: skip
def test_rows_are_those_of_transformers(tmp_path: Path, source: str, flags: dict[str, Any]) -> None:
    """As often, in the order and with the numbers: also where an evaluation draws between two steps."""
    read, trainers = [], []
    for make in (theirs, ours):
        dataset, other = Drawing(source, 7), Drawing(source, 5)
        trainer = make(tmp_path / make.__name__, dataset, other, **flags)
        assert dataset.reads == other.reads == []
        trainer.train()
        read.append((dataset.reads, other.reads))
        trainers.append(trainer)
    check_equal(curve(trainers[1]), curve(trainers[0]))
    assert read[0] == read[1]
    assert flags.get("num_train_epochs") != 4 or len(read[1][0]) == 4 * 7
    if "eval_strategy" in flags:
        check_equal(curve(trainers[1], "eval_loss"), curve(trainers[0], "eval_loss"))


class Epochs(Plain):
    """Rows of an epoch that the loader tells it."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        self.note(row)
        return item(100 * self.epoch + row)


def test_a_data_set_that_is_told_the_epoch(tmp_path: Path) -> None:
    expected = losses(theirs(tmp_path / "a", Epochs()))
    check_equal(losses(ours(tmp_path / "b", Epochs())), expected)


class Curriculum(transformers.TrainerCallback):
    """Changes after each step what the next rows are."""

    def __init__(self, dataset: Epochs) -> None:
        self.dataset = dataset

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.dataset.epoch = state.global_step
        random.random()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_data_set_that_a_callback_changes_after_each_step(tmp_path: Path, accumulation: int) -> None:
    """Rows are read when transformers reads them: one batch before the step ends."""
    found = []
    for make in (theirs, ours):
        dataset = Epochs()
        trainer = make(tmp_path / make.__name__, dataset, gradient_accumulation_steps=accumulation)
        trainer.add_callback(Curriculum(dataset))
        found.append(losses(trainer))
    check_equal(found[1], found[0])


def rows(count: int) -> list[dict[str, Any]]:
    return [item(row) for row in range(count)]


def test_a_list_that_is_changed_before_train(tmp_path: Path) -> None:
    found = []
    for make in (theirs, ours):
        data = rows(8)
        trainer = make(tmp_path / make.__name__, data)
        data[3] = item(99, 20)
        data[5]["labels"][:12] = -100
        del data[6:]
        found.append(losses(trainer))
    check_equal(found[1], found[0])


def test_a_table_with_a_transform_that_draws(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")

    def drawn(batch: dict[str, list[Any]]) -> dict[str, Any]:
        made = [item(random.randrange(1000)) for _ in batch["input_ids"]]
        return {name: [row[name] for row in made] for name in made[0]}

    found = []
    for make in (theirs, ours):
        table = datasets.Dataset.from_list([{"input_ids": [1, 2], "text": "x"}] * 7)
        table.set_transform(drawn)
        found.append(losses(make(tmp_path / make.__name__, table)))
    check_equal(found[1], found[0])


@pytest.mark.parametrize("epochs", ["before", "after"])
def test_persistent_workers_of_an_evaluation(tmp_path: Path, epochs: str) -> None:
    found = []
    flags = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    for make in (theirs, ours):
        trainer = make(tmp_path / make.__name__, Plain(), Drawing("python", 7), **flags)
        if epochs == "after":
            trainer.train()
        found.append([trainer.evaluate()["eval_loss"] for _ in range(2)])
    check_equal(found[1], found[0])


@pytest.mark.parametrize("persistent", [True, False])
def test_worker_processes_end_with_their_trainer(tmp_path: Path, persistent: bool) -> None:
    """Also in a reference cycle, and after a fault; torch would wait 5 seconds and kill them."""

    class Faulty(Plain):
        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            return {"input_ids": 3} if row == 5 else item(row)

    flags = {"dataloader_num_workers": 2, "dataloader_persistent_workers": persistent}
    trainer = ours(tmp_path, Faulty(), Plain(), **flags)
    trainer.cycle = trainer  # type: ignore[attr-defined]
    trainer.evaluate()
    with pytest.raises(ValueError, match="row 5"):
        trainer.train()
    workers = multiprocessing.active_children()
    del trainer
    gc.collect()
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
    assert persistent <= (len(workers) > 0)


class Stop(fastsft.TrainerCallback):
    """Ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        random.random()
        control.should_training_stop = state.global_step == self.step


@pytest.mark.covering
@pytest.mark.parametrize("source", ["python", "numpy", "torch"])
@pytest.mark.parametrize("step", [3, 4, 6])
@pytest.mark.parametrize(
    "flags",
    [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
        {"dataloader_num_workers": 2},
        {"group_by_length": True},
        {"eval_strategy": "steps", "eval_steps": 1},
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(
    tmp_path: Path, source: str, step: int, flags: dict[str, Any]
) -> None:
    flags = {**flags, "save_strategy": "steps", "save_steps": 1}

    def run(output: str, stop: int, **how: Any) -> Any:
        trainer = ours(tmp_path / output, Drawing(source, 7), Drawing(source, 4), **flags)
        trainer.add_callback(Stop(stop))
        trainer.train(**how)
        return trainer

    whole = run("whole", 100)
    run("parts", step)
    resumed = run("parts", 100, resume_from_checkpoint=True)
    assert curve(resumed) == curve(whole) and len(curve(whole)) == 8
    assert curve(resumed, "eval_loss") == curve(whole, "eval_loss")


def test_faults_name_the_row(tmp_path: Path) -> None:
    class Faulty(Plain):
        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            found = item(row)
            if row == 5:
                found["labels"] = found["labels"][:3]
            return found

    for workers in (0, 1):
        trainer = ours(tmp_path, Faulty(), dataloader_num_workers=workers)
        with pytest.raises(ValueError, match=r"row 5: expected input_ids and labels"):
            trainer.train()


def test_an_id_that_the_model_does_not_know_names_the_row(tmp_path: Path) -> None:
    class Foreign(Plain):
        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            return {name: torch.full((4,), 90 if row == 6 else 3) for name in ("input_ids", "labels")}

    with pytest.raises(ValueError, match="row 6 has token id 90, the model knows 64"):
        ours(tmp_path, Foreign()).train()
    with pytest.raises(ValueError, match="row 6 has token id 90, the model knows 64"):
        ours(tmp_path, rows(4), Foreign()).evaluate()


def test_rows_longer_than_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Long(Plain):
        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            self.note(row)
            return item(row, 40, 48)

    expected = losses(theirs(tmp_path / "a", Long()))
    trainer = ours(tmp_path / "b", Long(), model_max_length=16)
    assert not trainer._run.planner.rows.is_exact
    check_equal(losses(trainer), expected)
    assert "has 40 tokens, 16 were planned for" in capsys.readouterr().out
    trainer = ours(tmp_path / "c", Long(), model_max_length=16)
    trainer._run.planner.memory = type(trainer._run.planner.memory)(trainer._run.planner.memory_plan.total)  # type: ignore[union-attr]
    with pytest.raises(
        ValueError, match=r"of train_dataset has 40 tokens, memory was planned for rows of 16"
    ):
        trainer.train()


def test_another_number_of_rows_while_it_trains(tmp_path: Path) -> None:
    data = rows(8)

    class Shorten(fastsft.TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            del data[5:]

    trainer = ours(tmp_path, data)
    trainer.add_callback(Shorten())
    with pytest.raises(ValueError, match=r"expected 8 rows as when train\(\) began, got 5"):
        trainer.train()


def on_ranks(groups: dict[str, str], output: Path, source: str, which: str, flags: dict[str, Any]) -> Any:
    """Curves and reads of one rank."""
    import transformers.trainer

    transformers.trainer.round = lambda value, digits=0: value  # type: ignore[attr-defined]
    dataset, other = Drawing(source, 7), Drawing(source, 8)
    if which == "ours":
        trainer: Any = ours(output, dataset, other, **flags)
    else:
        trainer = theirs(output, dataset, other, ddp_backend="gloo", **flags)
    trainer.train()
    return curve(trainer), curve(trainer, "eval_loss"), dataset.reads, other.reads


@pytest.mark.variants("flags0-python", "flags1-torch")
@pytest.mark.parametrize("source", ["python", "torch"])
@pytest.mark.parametrize(
    "flags",
    [{}, {"gradient_accumulation_steps": 2}, {"dataloader_num_workers": 2, "dataloader_drop_last": True}],
)
def test_two_ranks_read_what_they_would_of_transformers(
    tmp_path: Path, source: str, flags: dict[str, Any]
) -> None:
    flags = {**flags, "eval_strategy": "epoch"}
    expected, found = (
        run_ranks(2, on_ranks, tmp_path / which, source, which, flags, launched=True)
        for which in ("theirs", "ours")
    )
    for (curve_0, evaluated_0, *reads_0), (curve_1, evaluated_1, *reads_1) in zip(
        expected, found, strict=True
    ):
        assert reads_1 == reads_0
        check_equal(curve_1, curve_0)
        check_equal(evaluated_1, evaluated_0)


def test_transformers_draws_as_the_tests_do(tmp_path: Path) -> None:
    """The data sets above are different ones in each epoch, and for other seeds."""
    first = losses(theirs(tmp_path / "a", Drawing("numpy"), learning_rate=0.0))
    assert len(set(first)) == len(first)
    other = losses(theirs(tmp_path / "b", Drawing("numpy"), learning_rate=0.0, seed=3))
    assert not np.allclose(first, other)
    assert FLAGS["num_train_epochs"] == 2 and model().config.vocab_size == 64
