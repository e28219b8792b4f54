"""The public functions that load and save models and checkpoints."""

from __future__ import annotations

from fastsft.checkpoint.content import keep_only
from fastsft.checkpoint.external.trainer import trainer_save_model_safe
from fastsft.checkpoint.load import (
    check_checkpoint,
    checkpoint_exists,
    load_checkpoint,
    load_trained_weights,
    newest_checkpoint,
)
from fastsft.checkpoint.saver import CheckpointSaver, save_checkpoint
from fastsft.checkpoint.start import archive_abandoned, archive_checkpoints
from fastsft.model.model_save import save_model_directory
from fastsft.model.output_directory import check_output_directory, prepare_output_directory
from fastsft.model.weights import load_weights

__all__ = [
    "CheckpointSaver",
    "archive_abandoned",
    "archive_checkpoints",
    "check_checkpoint",
    "check_output_directory",
    "checkpoint_exists",
    "keep_only",
    "load_checkpoint",
    "load_trained_weights",
    "load_weights",
    "newest_checkpoint",
    "prepare_output_directory",
    "save_checkpoint",
    "save_model_directory",
    "trainer_save_model_safe",
]
