"""A trainer of another library, as its save sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fastsft.model.model_save import TrainedRun

if TYPE_CHECKING:
    from torch import nn


class ForeignArguments(Protocol):
    """Its arguments. They may have `to_json_string` and much else."""

    @property
    def output_dir(self) -> str:
        """Directory that the model goes to."""


class ForeignTrainer(Protocol):
    """transformers' Trainer, or another with these. It may have a tokenizer under several names."""

    @property
    def model(self) -> nn.Module:
        """In FSDP, DDP or nothing."""

    @property
    def args(self) -> ForeignArguments:
        """Of the run."""

    def save_model(self) -> None:
        """Its own save."""


class OwnTrainer(TrainedRun, Protocol):
    """fastsft's Trainer."""

    def save_model(self) -> None:
        """Into its output directory; collective."""
