"""Ranks that make one Trainer each, of which rank 1's differs in something; run by ranks.run_ranks."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch
from fastsft.trainer import Trainer
from saving_run import Conversations


class Watcher(TrainerCallback):
    """Could ask for a checkpoint on one rank alone."""


def arguments(output: Path, **given: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(output), use_cpu=True, max_steps=2, per_device_train_batch_size=2, model_max_length=32,
        disable_tqdm=True, plot_loss=False, save_strategy="no", **given,
    )  # fmt: skip


def items(count: int) -> list[dict[str, list[int]]]:
    """Rows of a data set that is not fastsft's."""
    return [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "attention_mask": [1, 1, 1]}] * count


def learning_rate(model: Path, output: Path, other: bool) -> Any:
    return Trainer(
        model, arguments(output, learning_rate=2.0 if other else 1.0), train_dataset=Conversations()
    )


def callbacks(model: Path, output: Path, other: bool) -> Any:
    return Trainer(
        model, arguments(output), train_dataset=Conversations(), callbacks=[Watcher] if other else None
    )


def metrics(model: Path, output: Path, other: bool) -> Any:
    return Trainer(
        model, arguments(output), train_dataset=Conversations(),
        compute_metrics=(lambda predicted: {}) if other else None,
    )  # fmt: skip


def evaluation(model: Path, output: Path, other: bool) -> Any:
    data = Conversations()
    return Trainer(model, arguments(output), train_dataset=data, eval_dataset=data if other else None)


def element(model: Path, output: Path, other: bool) -> Any:
    """One element of a model in memory."""
    module = LlamaForCausalLM.from_pretrained(model)
    if other:
        with torch.no_grad():
            module.model.layers[1].mlp.up_proj.weight[3, 4] += 1e-3
    return Trainer(module, arguments(output), train_dataset=Conversations())


def length(model: Path, output: Path, other: bool) -> Any:
    """A data set that is not fastsft's, with a row less."""
    return Trainer(model, arguments(output), train_dataset=items(8 - int(other)))


def content(model: Path, output: Path, other: bool) -> Any:
    """The same number of rows, one with another token."""
    rows = [dict(row) for row in items(8)]
    rows[5] |= {"input_ids": [5, 6, 7 + int(other)], "labels": [-100, 6, 7 + int(other)]}
    return Trainer(model, arguments(output), train_dataset=rows)


def table(model: Path, output: Path, other: bool) -> Any:
    """A datasets.Dataset with another token, of which a collator makes the rows."""
    from datasets import Dataset

    rows = [{"ids": [5, 6, 7 + int(other and row == 5)]} for row in range(8)]
    return Trainer(model, arguments(output), train_dataset=Dataset.from_list(rows), data_collator=collate)


def collated(model: Path, output: Path, other: bool) -> Any:
    """A list, of whose tensors a collator makes the rows."""
    rows = [{"ids": torch.tensor([5, 6, 7 + int(other and row == 5)]), "text": ["x"]} for row in range(8)]
    return Trainer(model, arguments(output), train_dataset=rows, data_collator=collate)


def collate(rows: Any) -> dict[str, torch.Tensor]:
    ids = torch.tensor([list(row["ids"]) for row in rows])
    return {"input_ids": ids, "labels": ids.clone()}


class Drawn(torch.utils.data.Dataset[Any]):
    """Whose code makes the items."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        return items(8)[row]


def drawn(model: Path, output: Path, other: bool) -> Any:
    """Only the number of rows can be compared, which is told once."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        Trainer(model, arguments(output, learning_rate=1.0), train_dataset=Drawn()).evaluate(Drawn())
    raise ValueError("".join(gather_objects(said.getvalue())))


def equal_tables(model: Path, output: Path, other: bool) -> Any:
    """Of which each rank has made its own, with another fingerprint."""
    from datasets import Dataset

    rows = Dataset.from_list([{"ids": [5, 6, 7]}] * 8)
    rows._fingerprint = str(int(other))
    Trainer(model, arguments(output), train_dataset=rows, data_collator=collate)
    raise ValueError("taken")


def place(model: Path, output: Path, other: bool) -> Any:
    """The same weights, in memory on one rank."""
    given = LlamaForCausalLM.from_pretrained(model) if other else model
    return Trainer(given, arguments(output), train_dataset=Conversations())


def one_value(model: Path, output: Path, other: bool) -> Any:
    """A copy of the model's directory, in which one value of one of two files is another."""
    return copied(model, output, other, changed=True)


def copies(model: Path, output: Path, other: bool) -> Any:
    """Equal files of each rank's own."""
    copied(model, output, other, changed=False)
    raise ValueError("taken")


def copied(model: Path, output: Path, other: bool, *, changed: bool) -> Any:
    if other:
        copy = output.with_name("copy")
        shutil.copytree(model, copy)
        model = copy
        if changed:
            change_last_file(model)
    return Trainer(model, arguments(output), train_dataset=Conversations())


def change_last_file(model: Path) -> None:
    """One byte in its middle, with the old time of change."""
    path = sorted(model.glob("*.safetensors"))[-1]
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 2049] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def resume(model: Path, output: Path, other: bool) -> Any:
    trainer = Trainer(model, arguments(output), train_dataset=Conversations())
    return trainer.train(resume_from_checkpoint=True if other else None)


def changed(model: Path, output: Path, other: bool) -> Any:
    """Changed after the Trainer was made."""
    trainer = Trainer(model, arguments(output), train_dataset=Conversations())
    trainer.args.max_steps = 3 if other else 4
    return trainer.train()


def later_callback(model: Path, output: Path, other: bool) -> Any:
    trainer = Trainer(model, arguments(output), train_dataset=Conversations())
    if other:
        trainer.add_callback(Watcher)
    return trainer.train()


def other_evaluation(model: Path, output: Path, other: bool) -> Any:
    trainer = Trainer(model, arguments(output), train_dataset=Conversations())
    return trainer.evaluate(items(8 - int(other)))


def nothing(model: Path, output: Path, other: bool) -> Any:
    """Only what may differ."""
    given = {"report_to": "none", "log_level": "info" if other else "warning", "disable_tqdm": other}
    args = TrainingArguments(
        output_dir=str(output), use_cpu=True, max_steps=1, model_max_length=32, plot_loss=other,
        save_strategy="no", **given,
    )  # fmt: skip
    Trainer(model, args, train_dataset=Conversations()).train()
    raise ValueError("trained")


def outcome(groups: dict[str, str], kind: str, model: Path, output: Path) -> str:
    """What this rank is told."""
    make: Callable[[Path, Path, bool], Any] = globals()[kind]
    try:
        make(model, output, launch().rank == 1)
    except ValueError as error:
        return str(error)
    return "nothing was said"
