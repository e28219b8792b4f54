"""Loading and saving: what trainers and scripts call."""

from __future__ import annotations

from fastsft.checkpoint.aside import put_abandoned_aside, put_checkpoints_aside
from fastsft.checkpoint.best_checkpoint import checkpoint_exists, keep_only, load_trained_weights
from fastsft.checkpoint.checkpoint import check_checkpoint, load_checkpoint, newest_checkpoint
from fastsft.checkpoint.external.trainer import trainer_save_model_safe
from fastsft.checkpoint.saver import CheckpointSaver, save_checkpoint
from fastsft.model.model_save import save_model_directory
from fastsft.model.output_directory import check_output_directory, prepare_output_directory
from fastsft.model.weights import load_weights

__all__ = [
    "CheckpointSaver",
    "check_checkpoint",
    "check_output_directory",
    "checkpoint_exists",
    "keep_only",
    "load_checkpoint",
    "load_trained_weights",
    "load_weights",
    "newest_checkpoint",
    "prepare_output_directory",
    "put_abandoned_aside",
    "put_checkpoints_aside",
    "save_checkpoint",
    "save_model_directory",
    "trainer_save_model_safe",
]
