"""Files that a Trainer writes when it is asked to (docs/spec/trainer_semantics.md, section 18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.model.directory import save_model_directory
from fastsft.model.state_dict_save import save_given_weights
from fastsft.reporting.metrics_files import metrics_table, write_metrics
from fastsft.runtime.terminal import say
from fastsft.trainer.hub_uploads import HubUploads

if TYPE_CHECKING:
    import torch
    from huggingface_hub import CommitInfo

    from fastsft import _C
    from fastsft.checkpoint.saver import CheckpointSaver
    from fastsft.model.causal_lm import CausalLM
    from fastsft.reporting.progress import Progress


class TrainerFiles:
    """Saves the model, its state and metrics; a part of Trainer."""

    args: TrainingArguments
    state: TrainerState
    model: CausalLM
    progress: Progress
    saver: CheckpointSaver
    uploads: HubUploads | None
    is_world_process_zero: Callable[[], bool]
    _keep_paths: Callable[[], None]

    if TYPE_CHECKING:  # of TrainerModel

        @property
        def engine(self) -> _C.Engine: ...

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write a complete Hugging Face directory (default: `output_dir` of the arguments); collective.

        With --push_to_hub it is uploaded as well. RuntimeError when that fails, after the save.
        """
        self._keep_paths()
        directory = output_dir or self.args.output_dir or "."
        with self.progress.phase("saving", f"the model to {directory}"):
            save_model_directory(self, directory, "Trainer.save_model")
        if not _internal_call:
            self.upload_saved(directory)

    def upload_saved(self, directory: str) -> None:
        """With --push_to_hub: what `save_model` has written to `directory`; collective."""
        if self.uploads is not None:
            self._upload(directory, "Model save")

    def push_to_hub(self, commit_message: str = "End of training", **_: object) -> CommitInfo | None:
        """Save into `output_dir` and upload it; collective. huggingface_hub's CommitInfo on rank 0.

        Other arguments of transformers' method have no effect. ValueError without --push_to_hub.
        """
        if self.uploads is None:
            raise ValueError(
                "Trainer.push_to_hub: expected --push_to_hub True, which checks the access first"
            )
        self.save_model(_internal_call=True)
        return self._upload(self.args.output_dir or ".", commit_message)

    def _upload(self, directory: str, message: str) -> CommitInfo | None:
        assert self.uploads is not None
        with self.progress.phase("uploading", f"{directory} to {self.uploads.repo_id}"):
            return self.uploads.model(directory, message)

    def _save(
        self, output_dir: str | None = None, state_dict: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Write `state_dict` as a complete model directory, on the calling rank alone.

        For scripts that gather `trainer.model.state_dict()` on all ranks and call this where
        `args.should_save`; `save_model` needs neither. ValueError without weights on several ranks, and while
        a checkpoint is being written.
        """
        directory = output_dir or self.args.output_dir or "."
        if state_dict is None and self.args.world_size > 1:
            raise ValueError("Trainer._save: expected a state_dict; trainer.save_model() gathers by itself")
        if state_dict is None:
            self.save_model(directory)
            return
        if self.saver.in_flight:
            raise ValueError("Trainer._save: a checkpoint is being written; use trainer.save_model()")
        with self.progress.phase("saving", f"the model to {directory}"):
            save_given_weights(self, directory, state_dict)

    def save_state(self) -> None:
        """Write trainer_state.json into `output_dir`, on rank 0."""
        self._keep_paths()
        if self.is_world_process_zero():
            directory = Path(self.args.output_dir or ".")
            directory.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(directory / "trainer_state.json")

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print the metrics of `train`, `eval` or `test` as transformers does, on rank 0."""
        if self.is_world_process_zero():
            say(metrics_table(split, metrics))

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write `<split>_results.json` and, when `combined`, add to all_results.json, on rank 0."""
        self._keep_paths()
        if self.is_world_process_zero():
            write_metrics(self.args.output_dir or ".", split, metrics, combined=combined)
