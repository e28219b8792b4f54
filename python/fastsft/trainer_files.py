"""What a Trainer writes into `output_dir` when it is asked to (trainer_semantics.md, section 18)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.reporting.metrics_files import metrics_table, write_metrics
from fastsft.state import TrainerState


class TrainerFiles:
    """Saves the model, its state and metrics; a part of Trainer."""

    args: TrainingArguments
    state: TrainerState
    progress: Any
    is_world_process_zero: Callable[[], bool]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write a complete Hugging Face directory (default: `output_dir` of the arguments); collective."""
        from fastsft import saving

        directory = output_dir or self.args.output_dir or "."
        with self.progress.phase("saving", f"the model to {directory}"):
            saving.save_model_directory(self, directory)

    def save_state(self) -> None:
        """Write trainer_state.json into `output_dir`, on rank 0."""
        if self.is_world_process_zero():
            directory = Path(self.args.output_dir or ".")
            directory.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(directory / "trainer_state.json")

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print the metrics of `train`, `eval` or `test` as transformers does, on rank 0."""
        if self.is_world_process_zero():
            print(metrics_table(split, metrics), flush=True)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write `<split>_results.json` and, when `combined`, add to all_results.json, on rank 0."""
        if self.is_world_process_zero():
            write_metrics(self.args.output_dir or ".", split, metrics, combined=combined)
