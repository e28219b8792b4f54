"""`--report_to tensorboard`: event files in --logging_dir."""

from __future__ import annotations

from typing import Protocol

from fastsft.callbacks.state import TrainerState
from fastsft.trackers.tracker import TrackedArguments, TrackedModel, Tracker, Values, tracker_names


class _Writer(Protocol):
    """torch's SummaryWriter, which has no annotations."""

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> object: ...
    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> object: ...
    def flush(self) -> object: ...
    def close(self) -> object: ...


class TensorBoardTracker(Tracker):
    """Scalars train/loss, eval/loss, ... by step; arguments and model configuration as texts."""

    name = library = "tensorboard"

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: _Writer = SummaryWriter(log_dir=args.logging_dir)
        self._writer.add_text("args", args.to_json_string())
        config = getattr(model, "config", None)
        if config is not None:
            self._writer.add_text("model_config", config.to_json_string())

    def log(self, logs: Values, step: int) -> None:
        """Numbers become scalars, words texts; nothing else occurs."""
        for name, value in tracker_names(logs).items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
