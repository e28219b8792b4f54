"""A real Trainer on a tiny model, for the tests of saving, and what several ranks do with it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from fastsft import saving
from fastsft.arguments import TrainingArguments
from fastsft.checkpoint import content as checkpoint_content
from fastsft.checkpoint.saver import CheckpointSaver
from fastsft.model import CausalLM
from fastsft.runtime.launch import launch
from fastsft.trainer import Trainer, planner
from tiny_models import conversations
from tiny_models import train as train_engine


class Conversations:
    """Eight tokenised rows."""

    def __init__(self) -> None:
        self.native = conversations()

    def untouched_rows(self, *, label: bool = True) -> Any:
        """As fastsft's own data sets say that their items are these rows."""
        return self.native

    def __len__(self) -> int:
        return len(self.native)


class Tokens:
    """What saving needs of a tokenizer."""

    eos_token_id, bos_token_id, pad_token_id = 2, 1, 0

    def save_pretrained(self, directory: str) -> None:
        Path(directory, "tokenizer_config.json").write_text("{}\n")


def make_trainer(
    model: Path, output: Path, peft_config: Any = None, eval_dataset: Any = None, **options: Any
) -> Trainer:
    """Two conversations a micro-batch on one rank, two micro-batches a step, two steps an epoch."""
    flags = {
        "output_dir": str(output), "use_cpu": True, "gradient_accumulation_steps": 2, "num_train_epochs": 3,
        "per_device_train_batch_size": 2 // launch().world_size, "learning_rate": 0.01,
        "save_strategy": "steps", "save_steps": 2, "model_max_length": 32, "disable_tqdm": True,
        "logging_steps": 1, "plot_loss": False, **options,
    }  # fmt: skip
    return Trainer(
        CausalLM.from_pretrained(str(model)),
        args=TrainingArguments(**flags),
        train_dataset=Conversations(),
        eval_dataset=eval_dataset,
        tokenizer=Tokens(),
        peft_config=peft_config,
    )


def train(groups: dict[str, str], model: Path, output: Path) -> None:
    """To the end, from a checkpoint when there is one."""
    warnings.simplefilter("error")
    trainer = make_trainer(model, output, fsdp="full_shard")
    trainer.train(resume_from_checkpoint=saving.newest_checkpoint(output))
    saving.trainer_save_model_safe(trainer)


def reduce(
    groups: dict[str, str], model: Path, output: Path, memory: int | None, asked: bool | None
) -> dict[str, Any]:
    """To the end, a conversation a micro-batch; its plan for `memory` bytes, and the result."""
    warnings.simplefilter("error")
    if memory is not None:
        planner.rank_memory = lambda device: memory
    trainer = make_trainer(
        model, output, fsdp="full_shard", per_device_train_batch_size=1, micro_batch_tokens=1,
        sync_each_batch=asked,
    )  # fmt: skip
    planned = trainer._run.planner.sync_each_batch
    try:
        trainer.train(resume_from_checkpoint=saving.newest_checkpoint(output))
    except ValueError as error:
        return {"planned": planned, "refused": str(error)}
    plan = trainer._run.planner.memory_plan
    assert plan
    return {
        "planned": planned, "used": trainer._run.planner.sync_each_batch, "total": plan.total,
        "gradients": trainer.engine.memory()["gradients"] - plan.parts["gradients"],
        "weights": trainer.engine.named_parameters(),
    }  # fmt: skip


def accumulate_less(groups: dict[str, str], model: Path, output: Path) -> list[tuple[bool, int]]:
    """Before and after a script leaves accumulation away: reductions, and bytes above those of the plan."""
    warnings.simplefilter("error")
    trainer, found = make_trainer(model, output, fsdp="full_shard", micro_batch_tokens=1), []
    for steps in (2, 1):
        trainer.args.gradient_accumulation_steps = steps
        trainer.train(resume_from_checkpoint=None)
        assert trainer._run.planner.memory_plan
        more = trainer.engine.memory()["gradients"] - trainer._run.planner.memory_plan.parts["gradients"]
        found.append((trainer._run.planner.sync_each_batch, more))
    return found


def fail(groups: dict[str, str], model: Path, output: Path) -> str:
    """Rank 1 fails while it saves; what this rank raises."""
    warnings.simplefilter("error")
    trainer = make_trainer(model, output, fsdp="full_shard")
    rank = launch().rank

    def broken(*_: Any) -> Any:
        raise RuntimeError("the disk of rank 1 is full")

    if rank == 1:
        checkpoint_content.CheckpointContent.write_random_state = broken
    try:
        saving.save_checkpoint(trainer, output / "checkpoint-0")
    except RuntimeError as error:
        return str(error)
    return "no error"


def ways(groups: dict[str, str], model: Path, output: Path) -> tuple[int, str]:
    """Saves in every way, on nodes without a common disk, too.

    Rank 1 fails behind the training; the step at which this rank hears of it, and what it raises.
    """
    warnings.simplefilter("error")
    rank = launch().rank
    for mode in ("parallel", "stream"):
        trainer = make_trainer(model, output / mode, fsdp="full_shard", save_mode=mode, max_shard_size="10KB")
        saving.save_model_directory(trainer, output / mode / "final")
        train_engine(trainer.engine, 1)
        saving.save_checkpoint(trainer, output / mode / "checkpoint-0")
    saver = CheckpointSaver(trainer)
    write = checkpoint_content.CheckpointContent.write_random_state

    def broken(*_: Any) -> Any:
        raise RuntimeError("the disk of rank 1 is full")

    if rank == 1:
        checkpoint_content.CheckpointContent.write_random_state = broken
    saver.save(output / "parallel" / "checkpoint-1")
    for step in range(10_000):
        train_engine(trainer.engine, 1)
        try:
            saver.poll()
        except RuntimeError as error:
            outcome = step, str(error)
            break
    checkpoint_content.CheckpointContent.write_random_state = write
    saver.save(output / "parallel" / "checkpoint-2")
    saver.wait()
    nodes(model, output)
    return outcome


def nodes(model: Path, output: Path) -> None:
    """From here on every rank is a machine with a disk of its own."""
    own = output / f"node-{launch().rank}"
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    trainer = make_trainer(model, own, fsdp="full_shard", save_on_each_node=True)
    train_engine(trainer.engine, 1)
    saving.save_checkpoint(trainer, own / "checkpoint-0")
    saving.save_model_directory(trainer, own)
    saving.load_checkpoint(trainer, own / "checkpoint-0")
