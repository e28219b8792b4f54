"""Data loaders of the Trainer beside those of transformers': the same batches in the same order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fastsft.arguments import TrainingArguments
from fastsft.data.loaders import RankBatches
from fastsft.trainer import Trainer
from padded_items import WIDTH, random_items
from tiny_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("loaders") / "model", "untied")


def make_trainer(model: Path, output: Path, **given: Any) -> Trainer:
    flags = {
        "use_cpu": True, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 3,
        "model_max_length": WIDTH, "disable_tqdm": True, "plot_loss": False, **given.pop("flags", {}),
    }  # fmt: skip
    rows = random_items()
    return Trainer(
        str(model), TrainingArguments(str(output), **flags), train_dataset=rows, eval_dataset=rows, **given
    )


def ids(loader: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in loader]


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_transformers(model: Path, tmp_path: Path, drop_last: bool) -> None:
    args = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=2, per_device_eval_batch_size=3,
        dataloader_drop_last=drop_last, report_to="none",
    )  # fmt: skip
    theirs = transformers.Trainer(
        transformers.LlamaForCausalLM.from_pretrained(model), args,
        data_collator=transformers.default_data_collator, train_dataset=random_items(),
    )  # fmt: skip
    ours = make_trainer(model, tmp_path, flags={"dataloader_drop_last": drop_last})
    loader, other = ours.get_train_dataloader(), theirs.get_train_dataloader()
    assert isinstance(loader, torch.utils.data.DataLoader) and len(loader) == len(other)
    for _ in range(2):  # each pass is the next epoch
        assert ids(loader) == ids(other)
    assert ids(ours.get_eval_dataloader()) == ids(theirs.get_eval_dataloader(random_items()))
    loader.set_epoch(0)
    assert ids(loader) == ids(theirs.get_train_dataloader())


def test_rows_of_uneven_length_are_filled_up(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model, tmp_path)
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}]
    (batch,) = trainer.get_test_dataloader(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]


def test_ones_own_collator_makes_the_batches(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model, tmp_path, data_collator=transformers.default_data_collator)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape == (2, WIDTH) and batch["attention_mask"].dtype == torch.bool


def test_evaluation_sets_by_name(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model, tmp_path)
    trainer.eval_dataset = {"a": random_items()[:2], "b": random_items()}
    assert len(ids(trainer.get_eval_dataloader("a"))) == 1 and len(ids(trainer.get_eval_dataloader("b"))) == 3
    for wanted, message in ((None, "or the name of one"), ("c", "known names: a, b")):
        with pytest.raises(ValueError, match=message):
            trainer.get_eval_dataloader(wanted)
    trainer.train_dataset = None
    with pytest.raises(ValueError, match="requires a train_dataset"):
        trainer.get_train_dataloader()


@pytest.mark.parametrize(("rank", "rows"), [(0, [[10, 11], [14, 15]]), (1, [[12, 13], [16, 10]])])
def test_each_rank_has_its_own_batches(rank: int, rows: list[list[int]]) -> None:
    """Seven rows in batches of two on two ranks; positions in the order are wrapped around."""
    place: Any = SimpleNamespace(data_parallel_rank=rank, data_parallel_size=2)
    order = np.arange(10, 17)
    batches = RankBatches(place, 2, False, len(order), lambda epoch: order)
    assert len(batches) == 2
    assert [list(batch) for batch in batches] == rows
