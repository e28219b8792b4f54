"""Two ranks whose callbacks look at checkpoints and losses; run by ranks.run_ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

from fastsft.checkpoint import save
from fastsft.runtime.launch import launch
from trainer_pairs import Plain, item, model, ours


class Quiet(transformers.TrainerCallback):
    """Does nothing."""


def hear_of_saves(groups: dict[str, str], output: Path) -> list[bool]:
    """Whether the checkpoint was there at each `on_save`, which the first rank alone has."""
    trainer = ours(output, Plain(32), max_steps=6, save_strategy="steps", save_steps=2)
    quiet, found = Quiet(), []
    if launch().rank == 0:
        quiet.on_save = lambda _, state, *__, **___: found.append(
            (output / f"checkpoint-{state.global_step}" / "manifest.json").is_file()
        )
    trainer.add_callback(quiet)
    trainer.train()
    return found


class Hit(transformers.TrainerCallback):
    """The user's Ctrl-C after step 2, at the second rank."""

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step == 2 and launch().rank == 1:
            os.kill(os.getpid(), signal.SIGINT)


def interrupt_with_a_full_disk(groups: dict[str, str], output: Path, fsdp: str) -> dict[str, Any]:
    """What is raised, and whether the weights of the given model have moved."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    save.commit_checkpoint = refuse
    trainer = ours(output, Plain(32), max_steps=6, save_strategy="no", fsdp=fsdp)
    trainer.add_callback(Hit())
    module = trainer.model.module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    try:
        trainer.train()
    except KeyboardInterrupt as error:
        said = str(error)
    now = module.state_dict()
    return {"said": said, "moved": any(not torch.equal(now[name], value) for name, value in before.items())}


class Calling(transformers.TrainerCallback):
    """Of a script: notes a loss of its own after each step, or what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        try:
            self.seen.append(loss_of(model))
        except TypeError as error:
            self.seen.append(str(error))


def loss_of(model: Any) -> float:
    batch = {name: value.unsqueeze(0) for name, value in item(0).items()}
    with torch.no_grad():
        return float(model(**batch).loss)


def call_the_model(
    groups: dict[str, str], output: Path, fsdp: str, adapters: bool
) -> tuple[list[Any], float, float]:
    """What a callback sees after each of two steps; losses afterwards, of trainer.model and the object."""
    module: Any = model()
    if adapters:
        torch.manual_seed(3)
        module = get_peft_model(
            module, LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        )
    trainer, calling = ours(output, Plain(16), module=module, max_steps=2, fsdp=fsdp), Calling()
    trainer.add_callback(calling)
    trainer.train()
    return calling.seen, loss_of(trainer.model), loss_of(trainer.model.module)
