"""A Trainer as a save of its model sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.state import TrainerState
    from fastsft.model.causal_lm import CausalLM


class TrainedRun(Protocol):
    """The Trainer itself. It may have a `tokenizer`, or a `data_collator` with one, and, while it trains, a
    `saver`."""

    @property
    def args(self) -> TrainingArguments:
        """Of the run."""

    @property
    def model(self) -> CausalLM:
        """With its configuration."""

    @property
    def engine(self) -> _C.Engine:
        """With the weights."""

    @property
    def state(self) -> TrainerState:
        """Of the loop."""
