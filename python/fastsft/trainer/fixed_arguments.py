"""Arguments that transformers' Trainer reads once, so that a later change of them has no effect."""

from __future__ import annotations

import copy
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.arguments.choices import is_same
from fastsft.runtime.messages import warn_once

# transformers makes the label smoother and reads noise and order in Trainer.__init__ ...
_OF_TRAINER = ("label_smoothing_factor", "neftune_noise_alpha", "data_seed")
# ... and these when the first train() makes the optimizer, which later calls of train() keep.
_OF_OPTIMIZER = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")


class FixedArguments:
    """The values that a Trainer made with `args` keeps."""

    def __init__(self, args: TrainingArguments) -> None:
        self._values = {name: getattr(args, name) for name in _OF_TRAINER}
        args._order_seed = None  # of another Trainer

    def values(self) -> dict[str, Any]:
        """By name, as far as they are fixed."""
        return dict(self._values)

    def order_seed(self, drawn: int) -> int:
        """Seed of the random order of rows. drawn: torch's, which counts where data_seed is None."""
        seed: int | None = self._values["data_seed"]
        return drawn if seed is None else seed

    def begin(self, args: TrainingArguments) -> None:
        """train() begins: the first one fixes the optimizer's values. A line for changes left out.

        ValueError for a later one with reduce_lr_on_plateau: transformers goes on from the reduced rate.
        """
        if "learning_rate" in self._values and args.lr_scheduler_type == "reduce_lr_on_plateau":
            raise ValueError(
                "Trainer.train: expected one call with lr_scheduler_type='reduce_lr_on_plateau', got "
                "another, which would go on from the reduced rate in transformers and from the first one "
                "here; make another Trainer"
            )
        for name, value in self._values.items():
            if not is_same(getattr(args, name), value):
                since = "the Trainer was made" if name in _OF_TRAINER else "the optimizer was made"
                warn_once(
                    f"Trainer.train: args.{name} was {value!r} when {since}, and stays so, as in "
                    "transformers; make another Trainer for another value"
                )
        for name in _OF_OPTIMIZER:
            self._values.setdefault(name, getattr(args, name))

    def over(self, args: TrainingArguments) -> TrainingArguments:
        """A copy of `args` with the fixed values."""
        fixed = copy.copy(args)
        for name, value in self._values.items():
            setattr(fixed, name, value)
        return fixed
