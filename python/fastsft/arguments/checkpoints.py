"""Arguments of writing models and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.intervals import SaveInterval
from fastsft.arguments.support import used


@dataclass
class CheckpointArguments:
    """Cadence, number and form of what is saved."""

    save_strategy: SaveInterval = used("steps", "save by steps, by epochs, at the best evaluation, or not")
    save_steps: float = used(500, "steps between checkpoints; a share of all steps when below 1")
    save_total_limit: int | None = used(None, "checkpoints that are kept")
    save_safetensors: bool = used(True, "model files are safetensors", "False raises")
    save_on_each_node: bool = used(False, "the first rank of every node writes, whole, to its own disk")
    save_only_model: bool = used(
        False, "checkpoints without optimizer and generators, which no run can resume"
    )
    restore_callback_states_from_checkpoint: bool = used(
        False, "callbacks go on where the checkpoint left them"
    )
    enable_jit_checkpoint: bool = used(
        False, "a checkpoint on SIGTERM", "always written, on SIGINT and SIGUSR1 too"
    )
    save_dtype: Literal["auto", "float32", "bfloat16"] = used(
        "auto", "dtype of the saved model; auto is the source model's"
    )
    max_shard_size: str = used("5GB", "largest model file, in decimal units")
    save_mode: Literal["auto", "stream", "parallel"] = used(
        "auto", "model files: all ranks write their parts, or rank 0 writes what it gathers unit by unit"
    )
    async_save: bool = used(True, "write checkpoints while training goes on, from a copy in host memory")
    on_save_error: Literal["stop", "continue"] = used(
        "stop", "when a checkpoint cannot be written: end the run, or say so and go on"
    )
    save_patience: int = used(
        600, "seconds that a run waits at its end when the disk has no room for the model; 0 not at all"
    )
