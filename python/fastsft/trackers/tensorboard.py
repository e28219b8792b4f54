"""`--report_to tensorboard`: event files in --logging_dir."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

from fastsft.callbacks.state import TrainerState
from fastsft.trackers.tracker import (
    TrackedArguments,
    TrackedModel,
    Tracker,
    Values,
    number,
    tracker_names,
)


class _Writer(Protocol):
    """torch's SummaryWriter, which has no annotations."""

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> object: ...
    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> object: ...
    def flush(self) -> object: ...
    def close(self) -> object: ...


class TensorBoardTracker(Tracker):
    """Scalars train/loss, eval/loss, ... by step; arguments and model configuration as texts."""

    name = library = "tensorboard"

    @classmethod
    def check(cls, args: TrackedArguments) -> None:
        """ValueError where --logging_dir cannot be made or takes no files; nothing is left there."""
        place = Path(args.logging_dir or ".")
        if (
            "://" in str(args.logging_dir)
            or Path(args.output_dir or ".").absolute() in place.absolute().parents
        ):
            return  # of a library that writes elsewhere; and --output_dir is looked at as such
        there = place.absolute()
        while not os.path.lexists(there):
            there = there.parent
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise _refusal(place, there, error) from None

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Open the event file. ValueError where --logging_dir takes none.

        A resumed run hides what the one before it logged there after the step that it goes on from.
        """
        from torch.utils.tensorboard import SummaryWriter

        place = Path(args.logging_dir or ".")
        try:
            begin = state.global_step + 1 if state.global_step else None
            self._writer: _Writer = SummaryWriter(log_dir=args.logging_dir, purge_step=begin)
        except OSError as error:
            raise _refusal(place, place, error) from error
        self._writer.add_text("args", args.to_json_string())
        config = getattr(model, "config", None)
        if config is not None:
            self._writer.add_text("model_config", config.to_json_string())

    def log(self, logs: Values, step: int) -> None:
        """Numbers become scalars, words texts; a line names what is neither, such as a list of numbers."""
        for name, value in tracker_names(logs).items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            elif (scalar := number(value)) is not None:
                self._writer.add_scalar(name, scalar, step)
            else:
                self.leave_out(name, value, "a number or a text")
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the event file."""
        self._writer.close()


def _refusal(place: Path, there: Path, error: OSError) -> ValueError:
    where = "" if there == place else f" in {there}"
    return ValueError(
        f"--logging_dir {place}: expected a directory to write into, got{where}: {error.strerror or error}; "
        "choose another --logging_dir, or leave it out"
    )
