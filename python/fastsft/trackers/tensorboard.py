"""`--report_to tensorboard`: writes event files into --logging_dir."""

from __future__ import annotations

import itertools
import os
import socket
import time
from pathlib import Path
from typing import Any, Protocol

from fastsft.callbacks.samples import sample_markdown
from fastsft.callbacks.state import TrainerState
from fastsft.runtime.new_files import NewFile
from fastsft.trackers.tracker import (
    TrackedArguments,
    TrackedModel,
    Tracker,
    Values,
    check_writable,
    number,
    tracker_names,
    unwritable,
)


class _Writer(Protocol):
    """Writes scalars and texts: an `_EventFile`, or torch's SummaryWriter, which has no type annotations."""

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> object: ...
    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> object: ...
    def flush(self) -> object: ...
    def close(self) -> object: ...


class _EventFile:
    """A new event file in a local directory, written through an open file descriptor.

    TensorBoard's own writer opens the file by name for each write, and would follow a link that another user
    has put in its place. begin: first step from which TensorBoard hides the values of earlier event files;
    None hides nothing.
    """

    _numbers = itertools.count()

    def __init__(self, directory: Path, begin: int | None) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._event = event_pb2.Event
        self._forms: Any = summary  # Any: TensorBoard's `summary` module has no type annotations
        directory.mkdir(parents=True, exist_ok=True)
        own = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(self._numbers)}"
        self._records = RecordWriter(NewFile(directory / f"events.out.tfevents.{own}"))
        self._add(file_version="brain.Event:2")
        if begin is not None:
            self._add(step=begin, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
        self.flush()

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self._add(summary=self._forms.text(tag, text_string), step=global_step)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self._add(summary=self._forms.scalar(tag, scalar_value), step=global_step)

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self.flush()
        self._records.close()


class TensorBoardTracker(Tracker):
    """Tracker that logs scalars such as train/loss and eval/loss by step, and settings as texts."""

    name = library = "tensorboard"

    @classmethod
    def check(cls, args: TrackedArguments) -> None:
        """Raise ValueError if --logging_dir cannot be created or written to.

        The check leaves no file behind.
        """
        place = Path(args.logging_dir or ".")
        if (
            "://" in str(args.logging_dir)
            or Path(args.output_dir or ".").absolute() in place.absolute().parents
        ):
            return  # TensorBoard writes to URLs itself; another check covers --output_dir
        check_writable(place, f"--logging_dir {place}", "another --logging_dir, or leave it out")

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Open the event file. ValueError if --logging_dir is not writable.

        If the run is resumed, the values that the previous run logged after the checkpoint are hidden.
        """
        place = Path(args.logging_dir or ".")
        begin = state.global_step + 1 if state.global_step else None
        try:
            self._writer: _Writer = _writer_of(str(args.logging_dir or "."), begin)
        except OSError as error:
            raise unwritable(
                f"--logging_dir {place}", error, "another --logging_dir, or leave it out"
            ) from error
        self._writer.add_text("args", args.to_json_string())
        config = getattr(model, "config", None)
        if config is not None:
            self._writer.add_text("model_config", config.to_json_string())

    def log(self, logs: Values, step: int) -> None:
        """Log numbers as scalars and strings as texts; a warning names values of other types."""
        for name, value in tracker_names(logs).items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            elif (scalar := number(value)) is not None:
                self._writer.add_scalar(name, scalar, step)
            else:
                self.leave_out(name, value, "a number or a text")
        self._writer.flush()

    def log_samples(self, samples: list[dict[str, str]], step: int) -> None:
        """Log each prompt with its reply as a text."""
        for place, sample in enumerate(samples, 1):
            self._writer.add_text(f"samples/{place}", sample_markdown(sample), step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()


def _writer_of(place: str, begin: int | None) -> _Writer:
    """Return an `_EventFile`, or for a URL such as gs://bucket torch's SummaryWriter."""
    if "://" not in place:
        return _EventFile(Path(place), begin)
    from torch.utils.tensorboard import SummaryWriter

    writer: _Writer = SummaryWriter(log_dir=place, purge_step=begin)
    return writer
