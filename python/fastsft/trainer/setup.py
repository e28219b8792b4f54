"""The inputs of a Trainer: arguments, model, data sets, and a script's functions."""

from __future__ import annotations

import copy
import logging
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fastsft.arguments import TrainingArguments
from fastsft.arguments.values import is_same
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.data.loaders import Collator
    from fastsft.model.causal_lm import CausalLM
    from fastsft.trainer.prediction import ComputeMetrics, Preprocess

# Arguments that transformers reads only in Trainer.__init__: label smoothing, noise, seed of the row order.
_READ_BY_TRAINER = ("label_smoothing_factor", "neftune_noise_alpha", "data_seed")
# Arguments that transformers reads only when the first train() makes the optimizer, which later calls keep.
_READ_BY_OPTIMIZER = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")


@dataclass
class Setup:
    """Settings and objects that all parts of a Trainer read; only the Trainer sets them.

    fixed: argument values for which later changes have no effect. is_training: True while `train` runs.
    has_trained: True once `train` has begun for the first time. bytes_at_end: size of the models that the
    program writes after `train` [bytes]; 0 if unknown. launched_by: start time of the first rank of each
    torchrun process (ranks/torchrun_job.py); empty without torchrun.
    """

    args: TrainingArguments = field(init=False)
    model: CausalLM = field(init=False)
    fixed: FixedArguments = field(init=False)
    tokenizer: object = None
    train_dataset: object = None
    eval_dataset: object = None
    data_collator: Collator | None = None
    compute_metrics: ComputeMetrics | None = None
    preprocess_logits: Preprocess | None = None
    is_training: bool = False
    has_trained: bool = False
    bytes_at_end: int = 0
    launched_by: dict[str, str] = field(default_factory=dict)

    @property
    def engine(self) -> _C.Engine:
        """Native engine of the model. A later Trainer for the same model builds a new engine."""
        engine = self.model.engine
        assert engine is not None  # the constructor of Trainer builds it
        return engine

    @property
    def output_dir(self) -> Path:
        """Output directory; the working directory if the arguments have none."""
        return Path(self.args.output_dir or ".")

    @property
    def step_args(self) -> TrainingArguments:
        """Copy of the arguments with the fixed values, with which steps and losses are computed."""
        return self.fixed.over(self.args)

    @property
    def wants_predictions(self) -> bool:
        """True if evaluations compute predictions for compute_metrics."""
        return self.compute_metrics is not None and not self.args.prediction_loss_only

    def check_not_training(self, name: str) -> None:
        """Raise ValueError while `train` runs: its steps are planned with the current value of `name`."""
        if self.is_training:
            raise ValueError(
                f"Trainer.{name}: cannot be set while train() runs, which is planned with the old one; set "
                "it before train(), or hand data to evaluate(eval_dataset)"
            )


class FixedArguments:
    """Values of arguments that transformers' Trainer reads once, so that later changes have no effect."""

    def __init__(self, args: TrainingArguments) -> None:
        self._values = {name: getattr(args, name) for name in _READ_BY_TRAINER}
        args._order_seed = None  # another Trainer with the same arguments may have set this seed

    def order_seed(self, drawn: int) -> int:
        """Return the seed of the row order. drawn: torch's initial seed, used if data_seed is None."""
        seed: int | None = self._values["data_seed"]
        return drawn if seed is None else seed

    def begin(self, args: TrainingArguments) -> None:
        """Fix the optimizer's values at the first train(); warn about later changes, which have no effect.

        ValueError for a second train() with reduce_lr_on_plateau: transformers would go on from the reduced
        learning rate, fastsft from the initial rate.
        """
        if "learning_rate" in self._values and args.lr_scheduler_type == "reduce_lr_on_plateau":
            raise ValueError(
                "Trainer.train: expected one call with lr_scheduler_type='reduce_lr_on_plateau', got "
                "another, which would go on from the reduced rate in transformers and from the first one "
                "here; make another Trainer"
            )
        for name, value in self._values.items():
            if not is_same(getattr(args, name), value):
                since = "the Trainer was made" if name in _READ_BY_TRAINER else "the optimizer was made"
                warn_once(
                    f"Trainer.train: args.{name} was {value!r} when {since}, and stays so, as in "
                    "transformers; make another Trainer for another value"
                )
        for name in _READ_BY_OPTIMIZER:
            self._values.setdefault(name, getattr(args, name))

    def over(self, args: TrainingArguments) -> TrainingArguments:
        """Return a copy of `args` with the fixed values."""
        fixed = copy.copy(args)
        for name, value in self._values.items():
            setattr(fixed, name, value)
        return fixed


def use_log_level(args: TrainingArguments) -> None:
    """Set the level of the logger "fastsft" from the arguments; `passive` keeps the current level."""
    name = args.log_level if args.should_log else args.log_level_replica
    if name != "passive":
        logging.getLogger("fastsft").setLevel(args.get_process_log_level())


def seed_everything(seed: int) -> None:
    """Seed the random generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
