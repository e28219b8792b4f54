"""Two ranks whose callbacks look at checkpoints and losses; run by ranks.run_ranks."""

from __future__ import annotations

from pathlib import Path

import transformers

from fastsft.runtime.place import launch
from trainer_pairs import Plain, ours


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
