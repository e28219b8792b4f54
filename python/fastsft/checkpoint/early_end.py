"""What decides whether early stopping ends a run: a part of a finished run's record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastsft.checkpoint.run_identity import data_hash
from fastsft.data.token_rows import TokenRows, untouched_rows

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

EVAL_DATA = "eval_data"  # key with the hash of each evaluation data set


def describe_stopping(args: TrainingArguments, eval_dataset: object) -> dict[str, Any]:
    """Return arguments and data that decide about an early end; empty without --early_stopping_patience."""
    if args.early_stopping_patience is None:
        return {}
    names = ("early_stopping_patience", "early_stopping_threshold", "metric_for_best_model",
             "greater_is_better", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "eval_loss",
             "per_device_eval_batch_size")  # fmt: skip
    sets = eval_dataset if isinstance(eval_dataset, Mapping) else {"": eval_dataset}
    hashes = {str(name): _hash_of(dataset, args) for name, dataset in sets.items()}
    return {**{name: getattr(args, name) for name in names}, EVAL_DATA: hashes}


def _hash_of(dataset: object, args: TrainingArguments) -> str | None:
    """Return the `data_hash` of labelled rows; None for a script's own data set."""
    if untouched_rows(dataset, label=False) is None:
        return None
    return data_hash(TokenRows.from_dataset(dataset, args.model_max_length))
