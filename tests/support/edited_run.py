"""Two ranks of which one alone changes fastsft's data set; run by ranks.run_ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastchat.train.train as fastchat
import torch
import transformers
import transformers.trainer

import fastsft.data
from golden_text import hf_tokenizer, read_records
from trainer_pairs import curve, model, ours, theirs

LENGTH = 96
ROWS = 12


class Change(transformers.TrainerCallback):
    """Labels of the second rank's data set are taken away at an event of the second epoch or step."""

    def __init__(self, dataset: Any, event: str) -> None:
        def change(args: Any, state: Any, control: Any, **unused: Any) -> None:
            if args.process_index == 1 and state.global_step == (3 if event == "on_epoch_begin" else 1):
                dataset.labels[:, :60] = -100

        if event:
            setattr(self, event, change)


class Failing(torch.utils.data.Dataset[Any]):
    """A row that cannot be read, on the second rank."""

    def __init__(self, dataset: Any, rank: int) -> None:
        self.dataset, self.rank = dataset, rank

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        if self.rank == 1:
            raise RuntimeError(f"row {row} cannot be read")
        return self.dataset[row]


def trained(groups: dict[str, str], whose: str, how: str, folder: Path) -> list[float] | str:
    """Losses of this rank, or what it is told. how: what the second rank, or the first, does alone."""
    import os

    rank = int(os.environ["RANK"])
    transformers.trainer.round = lambda value, digits=0: value  # type: ignore[attr-defined]
    fastchat.local_rank = 0
    module, make = (fastchat, theirs) if whose == "theirs" else (fastsft.data, ours)
    own = {} if make is theirs else {"model_max_length": LENGTH}
    records = [read_records("dummy_conversation")[row % 8] for row in range(ROWS)]
    dataset = module.SupervisedDataset(records, hf_tokenizer("llama2_legacy", LENGTH))
    if how == "looked at" and rank == 0:
        assert sum(len(dataset[row]["labels"]) for row in range(ROWS)) == ROWS * LENGTH
    if how == "changed before" and rank == 1:
        dataset.labels[:, :60] = -100
    data = Failing(dataset, rank) if how == "failing" else dataset
    try:
        trainer = make(folder / whose, data, module=model(LENGTH, vocabulary=32_001), **own)
    except ValueError as error:
        return f"ValueError: {error}"
    if how == "looked at later" and trainer.is_world_process_zero():
        assert len([dataset[row] for row in range(ROWS)]) == ROWS
    trainer.add_callback(Change(dataset, how if how.startswith("on_") else ""))
    try:
        trainer.train()
        return curve(trainer)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
