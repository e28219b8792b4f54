"""TrainingArguments, with the fields of transformers' class in all its releases and with fastsft's own.

transformers' HfArgumentParser can parse the class, too. The rules are in docs/spec/trainer_arguments.md,
sections 2, 3 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.given import record_of, restore_given, values_of
from fastsft.arguments.resolve.batches import resolve_batches
from fastsft.arguments.resolve.deepspeed import resolve_deepspeed
from fastsft.arguments.resolve.device import check_environment, resolve_precision, resolve_sharding
from fastsft.arguments.resolve.notices import warn_idle_flags, warn_odd_values
from fastsft.arguments.resolve.outputs import (
    resolve_checkpoints,
    resolve_faults,
    resolve_hub,
    resolve_reports,
)
from fastsft.arguments.resolve.training import (
    resolve_best_model,
    resolve_evaluation,
    resolve_optimizer,
    resolve_run,
)
from fastsft.arguments.support import apply_support
from fastsft.arguments.values import name_choices


@dataclass(repr=False)
class TrainingArguments(ArgumentFields):
    """Training arguments. ValueError for rejected values, and for values that contradict each other."""

    def __post_init__(self) -> None:
        self.resolve()

    def resolve(self, set_now: frozenset[str] = frozenset()) -> None:
        """Check the fields, and derive the values that depend on other fields. Call it again after changes.

        set_now: names of fields that count as given even if their value is the old one.
        """
        given = restore_given(self, TrainingArguments, self._record or {}, set_now)
        apply_support(self, TrainingArguments)
        local_rank = self.local_rank
        resolve_run(self)
        resolve_batches(self)
        resolve_precision(self)
        resolve_sharding(self)
        resolve_evaluation(self)
        resolve_optimizer(self)
        resolve_deepspeed(self)
        check_environment(self, local_rank)
        resolve_reports(self)
        resolve_checkpoints(self)
        resolve_best_model(self)
        resolve_hub(self)
        resolve_faults(self)
        warn_idle_flags(self)
        warn_odd_values(self)
        name_choices(self)
        self._record = record_of(self, TrainingArguments, given)

    def resolved_values(self) -> dict[str, Any]:
        """Return all resolved fields of this class by name, with lists and dictionaries copied."""
        return values_of(self, TrainingArguments)

    @property
    def recompute_mode(self) -> str:
        """The value of --recompute, whatever --gradient_checkpointing is; the memory plan resolves `auto`."""
        return self.recompute

    @property
    def token_budget(self) -> int:
        """The token budget of a micro-batch if there is no memory plan, as in a run that only evaluates."""
        return self.micro_batch_tokens or self.per_device_train_batch_size * self.model_max_length
