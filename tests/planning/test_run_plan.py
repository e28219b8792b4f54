"""Rows of every optimizer step and length of the run, against recorded runs of transformers."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fake_run import Rows
from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows
from fastsft.planning.run_plan import EpochGroups, RunPlan, step_source

TRAINER = Path(__file__).parents[1] / "golden" / "trainer"
RUNS = {path.stem: json.loads(path.read_text()) for path in sorted(TRAINER.glob("?_*.json"))}
FIELDS = {field.name for field in dataclasses.fields(TrainingArguments)}


class Ranks(TrainingArguments):
    """Arguments of a rank of several, without a launch."""

    ranks, rank = 1, 0
    world_size = property(lambda self: self.ranks)
    process_index = property(lambda self: self.rank)


def arguments(run, rank=0):
    args = Ranks(output_dir="out", **{name: value for name, value in run["flags"].items() if name in FIELDS})
    args.ranks, args.rank = run["world_size"], rank
    return args


def recorded_steps(run, rank):
    """Micro-batches of `rank` by optimizer step."""
    steps = {}
    for batch in run["micro_batches"][rank]:
        steps.setdefault(batch["step"], []).append(batch["rows"])
    return steps


def size_of(run):
    return {"first50": 50, "first48": 48, "dropped": 24, "dropped_group": 24}[
        Path(run["flags"]["data_path"]).stem
    ]


def groups_of(args, rows, epoch):
    return EpochGroups(args, rows, epoch, step_source(args, rows, args.token_budget, (1.0, 0.0)))


@pytest.mark.parametrize("name", RUNS)
def test_rows_epochs_and_steps_of_recorded_runs(name):
    run = RUNS[name]
    args = arguments(run)
    rows = TokenRows(Rows(np.ones(size_of(run), int), np.ones(size_of(run), int)), 256)
    plan = RunPlan.of(args, len(rows))
    assert plan.max_steps == run["max_steps"]
    for rank in range(run["world_size"]):
        for number, batches in recorded_steps(run, rank).items():
            epoch, step = divmod(number - 1, plan.steps_per_epoch)
            groups = groups_of(args, rows, epoch)
            assert groups.reference(step)[rank] == batches
            logged = run["steps"][number - 1]["epoch"]
            assert epoch + groups.done_after(step) / plan.micro_batches == logged


def test_recipe_of_the_readme():
    args = Ranks(
        output_dir="o", per_device_train_batch_size=2, gradient_accumulation_steps=16, warmup_ratio=0.03
    )
    args.ranks = 4
    plan = RunPlan.of(args, 910)
    assert (plan.micro_batches, plan.steps_per_epoch, plan.max_steps) == (114, 8, 24)
    assert args.get_warmup_steps(plan.max_steps) == 1


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 4), (1.0, 7), (1.1, 8), (2.5, 18)])
def test_fractional_epochs(epochs, steps):
    args = TrainingArguments(
        output_dir="o", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=epochs
    )
    plan = RunPlan.of(args, 50)
    assert plan.max_steps == steps and plan.num_epochs == int(np.ceil(epochs))


def test_nothing_to_train_on():
    args = TrainingArguments(output_dir="o", per_device_train_batch_size=8, dataloader_drop_last=True)
    with pytest.raises(ValueError, match="5 rows make no full batch of 8 rows"):
        RunPlan.of(args, 5)


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_empty_data_set_is_said_to_be_empty(drop_last):
    args = TrainingArguments(output_dir="o", dataloader_drop_last=drop_last)
    with pytest.raises(ValueError, match="train_dataset is empty: expected at least one row, got 0"):
        RunPlan.of(args, 0)


def test_data_seed_chooses_the_order():
    rows = TokenRows(Rows(np.ones(11, int), np.ones(11, int)), 8)
    for args, seed in [
        (TrainingArguments(output_dir="o", per_device_train_batch_size=11), 42),
        (TrainingArguments(output_dir="o", per_device_train_batch_size=11, seed=1, data_seed=43), 43),
    ]:
        assert groups_of(args, rows, 0).reference(0)[0][0] == _C.epoch_order(11, seed, 0).tolist()
