"""TrainingArguments: the fields of transformers' class from all its releases, and fastsft's own.

Rules: docs/spec/trainer_arguments.md, sections 2, 3 and 6. Also parsed by the real HfArgumentParser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastsft.arguments.choices import name_choices
from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.rules.batches import settle_batches
from fastsft.arguments.rules.checkpoints import settle_checkpoints
from fastsft.arguments.rules.deepspeed import settle_deepspeed
from fastsft.arguments.rules.environment import check_environment
from fastsft.arguments.rules.evaluation import settle_best_model, settle_evaluation
from fastsft.arguments.rules.faults import settle_faults
from fastsft.arguments.rules.hub import settle_hub
from fastsft.arguments.rules.idle_flags import name_idle_flags
from fastsft.arguments.rules.odd_values import name_odd_values
from fastsft.arguments.rules.optimizer import settle_optimizer
from fastsft.arguments.rules.precision import settle_precision
from fastsft.arguments.rules.reports import settle_reports
from fastsft.arguments.rules.run import settle_run
from fastsft.arguments.rules.sharding import settle_sharding
from fastsft.arguments.treatment import apply_treatments
from fastsft.arguments.user_values import record_of, restore_given, values_of


@dataclass(repr=False)
class TrainingArguments(ArgumentFields):
    """Training arguments. ValueError for what fastsft refuses, and for values that contradict each other."""

    def __post_init__(self) -> None:
        self.settle()

    def settle(self, set_now: frozenset[str] = frozenset()) -> None:
        """Check the fields and derive what depends on them; also after changes. ValueError: see the class.

        set_now: fields that a script sets even where the value is the old one (user_values.py).
        """
        given = restore_given(self, TrainingArguments, self._record or {}, set_now)
        apply_treatments(self, TrainingArguments)
        rank_of_flag = self.local_rank
        settle_run(self)
        settle_batches(self)
        settle_precision(self)
        settle_sharding(self)
        settle_evaluation(self)
        settle_optimizer(self)
        settle_deepspeed(self)
        check_environment(self, rank_of_flag)
        settle_reports(self)
        settle_checkpoints(self)
        settle_best_model(self)
        settle_hub(self)
        settle_faults(self)
        name_idle_flags(self)
        name_odd_values(self)
        name_choices(self)
        self._record = record_of(self, TrainingArguments, given)

    def settled_values(self) -> dict[str, Any]:
        """Every field of this class as it is; lists and dictionaries are copies."""
        return values_of(self, TrainingArguments)

    @property
    def recompute_mode(self) -> str:
        """Values that backward computes again instead of keeping; the memory plan settles `auto`.

        --gradient_checkpointing asks for what memory needs, which `auto` does with or without it.
        """
        return self.recompute

    @property
    def token_budget(self) -> int:
        """Tokens of one padding-free micro-batch, where no memory plan chooses: without training data."""
        return self.micro_batch_tokens or self.per_device_train_batch_size * self.model_max_length
