"""Lines about evaluations whose loss says less than it seems to: rows without targets, numbers not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.runtime.messages import tell, warn_once
from fastsft.trainer.schedule import metric_key

_MOST_NAMED = 10


def tell_without_targets(rows: Sequence[int], num_rows: int) -> None:
    """That batches of these rows add nothing to the mean of an evaluation, once."""
    warn_once(
        f"evaluation: {len(rows)} of {num_rows:,} rows are in batches without a token to learn, which add "
        f"nothing to the loss: {_named(rows)}; raise --model_max_length where prompts fill it, or take the "
        "rows "
        "out"
    )


def tell_no_target() -> None:
    """That there is nothing whose loss could be computed, once."""
    warn_once(
        "evaluation: no row has a token to learn, so that there is no loss to compare by (eval_loss is NaN): "
        "raise "
        "--model_max_length where prompts fill it, or give other data"
    )


def tell_not_finite(rows: Sequence[int]) -> None:
    """The rows of the batches whose loss is NaN or infinite; nothing when there are none."""
    if rows:
        tell(
            f"evaluation: the loss is not finite in the batches of {len(rows)} rows: {_named(sorted(rows))}; "
            "lower --learning_rate when the weights have grown, else look at these rows"
        )


def decides(args: TrainingArguments, metrics: Mapping[str, Any], step: int) -> bool:
    """False, and a line, when the metric of the best model is a number that is not finite.

    Such an evaluation moves neither the best model nor the plateau, and early stopping does not count it.
    """
    name = metric_key(args.metric_for_best_model or "loss")
    value = metrics.get(name)
    if not isinstance(value, Real) or math.isfinite(value):
        return True
    warn_once(
        f"step {step}: {name} is {value}: this evaluation decides neither about the best model nor about the "
        "learning rate or an early end"
    )
    return False


def _named(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_MOST_NAMED]))
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return f"row{'' if len(rows) == 1 else 's'} {shown}{more} (from 0)"
