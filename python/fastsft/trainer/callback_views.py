"""Views that callbacks get for the schedule and the data loader of transformers' Trainer: to read from."""

from __future__ import annotations

from typing import Any, NoReturn


class _ReadOnly:
    """ValueError for writes, AttributeError for what is not there, each with the way out."""

    _NAME = ""
    _INSTEAD = ""

    def __init__(self, trainer: Any) -> None:
        object.__setattr__(self, "_trainer", trainer)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._NAME} has no {name} here; {self._INSTEAD}")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise ValueError(f"{self._NAME}.{name} cannot be set by a callback; {self._INSTEAD}")

    def __delattr__(self, name: str) -> NoReturn:
        raise ValueError(f"{self._NAME}.{name} cannot be deleted by a callback; {self._INSTEAD}")


class ScheduleView(_ReadOnly):
    """`lr_scheduler` of callbacks: the rates of the running or last `train`."""

    _NAME = "lr_scheduler"
    _INSTEAD = (
        "it has get_last_lr(): the schedule is the engine's, chosen by lr_scheduler_type, "
        "lr_scheduler_kwargs, learning_rate and warmup_steps"
    )

    def get_last_lr(self) -> list[float]:
        """The rate of the next step, of weights with and without weight decay."""
        trainer: Any = self._trainer
        rate = float(trainer.schedule.rate(trainer.state.global_step))
        return [rate, rate]

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """ValueError: the engine takes the rates itself."""
        raise ValueError(f"lr_scheduler.step cannot be called by a callback; {self._INSTEAD}")


class LoaderView(_ReadOnly):
    """`train_dataloader` of callbacks: this rank's micro-batches of an epoch, not to be read."""

    _NAME = "train_dataloader"
    _INSTEAD = (
        "it has len(), dataset, batch_size and total_batch_size: the engine reads the rows itself; "
        "trainer.get_train_dataloader() makes a loader for a script"
    )

    @property
    def dataset(self) -> Any:
        """The trainer's train_dataset."""
        return self._trainer.train_dataset

    @property
    def batch_size(self) -> None:
        """None, as in transformers, whose loader has a sampler of batches."""
        return None

    @property
    def total_batch_size(self) -> int:
        """Rows of a micro-batch of all ranks."""
        return int(self._trainer.args.train_batch_size * self._trainer.args.world_size)

    def __len__(self) -> int:
        """Micro-batches of an epoch of this rank."""
        return int(self._trainer.plan.micro_batches)

    def __iter__(self) -> NoReturn:
        raise ValueError(f"train_dataloader cannot be read by a callback; {self._INSTEAD}")
