"""A rank that gives a model of transformers rows which the generic engine refuses; run by ranks.run_ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from generic_engines import library_model

GPT2 = {
    "vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "n_embd": 32, "n_layer": 2,
    "n_head": 4, "n_positions": 64,
}  # fmt: skip
Item = dict[str, list[int]]
PLAIN: Item = {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]}
REFUSED: dict[str, Item] = {
    "positions": {**PLAIN, "position_ids": [0, 1, 0, 1]},
    "longer": {"input_ids": [5] * 80, "labels": [5] * 80},
    "masked": {**PLAIN, "attention_mask": [0, 1, 1, 1]},
    "left": {"input_ids": [0, 5, 6, 7], "labels": [-100, -100, 6, 7], "attention_mask": [0, 1, 1, 1]},
}
REPEATED = 4


def plain_like(item: Item) -> Item:
    """PLAIN with the keys of `item`, which all rows of a data set have."""
    more = {"position_ids": [0, 1, 2, 3], "attention_mask": [1, 1, 1, 1]}
    return {**PLAIN, **{key: value for key, value in more.items() if key in item}}


class ReadRows:
    """A data set whose rows are known when they are read; the refused one is in the second step."""

    def __init__(self, refused: Item) -> None:
        self._items = [plain_like(refused)] * REPEATED + [refused] * REPEATED

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> Item:
        return self._items[row]


def outcome(groups: dict[str, str], kind: str, where: str, output: Path) -> tuple[str, int]:
    """What a run with a row of `kind` says, and how many steps were made before. where: the data set."""
    refused, trainer = REFUSED[kind], None
    args = TrainingArguments(
        output_dir=str(output), use_cpu=True, max_steps=2, per_device_train_batch_size=1,
        gradient_accumulation_steps=2, train_sampling_strategy="sequential", save_strategy="no",
        report_to="none", plot_loss=False, disable_tqdm=True, model_max_length=80,
    )  # fmt: skip
    items: Any = ReadRows(refused) if where == "read" else [plain_like(refused)] * (2 * REPEATED)
    if where == "list":
        items[-1] = refused
    try:
        trainer = Trainer(model=library_model("gpt2", **GPT2), args=args, train_dataset=items)
        if where == "evaluation":
            trainer.evaluate([plain_like(refused), refused])
        trainer.train()
    except ValueError as error:
        return str(error), 0 if trainer is None else trainer.engine.step_count
    return "", -1
