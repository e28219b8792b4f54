"""Where versions and settings of transformers make different things of the same rows: what holds here."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastsft.arguments import TrainingArguments
from fastsft.dataset.token_rows import TokenRows
from fastsft.notices import tell


def finds_packed(model: Any, args: TrainingArguments, *, training: bool) -> bool:
    """Whether the model keeps sequences of a row apart where its position_ids restart.

    Those of transformers 4.57 do so without an attention mask and without a cache: with `use_cache` False in
    the model's configuration, and in training with gradient checkpointing, which turns the cache off.
    """
    if not model.config.get("use_cache", True):
        return True
    own = getattr(getattr(model, "module", None), "is_gradient_checkpointing", False)
    return training and bool(args.gradient_checkpointing or own)


def tell_about_rows(rows: TokenRows, args: TrainingArguments, *, find_packed: bool) -> None:
    """A line for learned first labels, and one for packed rows that attention looks across."""
    first = int(np.count_nonzero(rows.label_counts > rows.target_counts))
    if first and args.loss_norm != "micro_batch":
        tell(_first_labels(first, args.loss_norm))
    packed = 0 if find_packed else int(rows.native.num_packed())
    if packed:
        tell(
            f"position_ids of {packed:,} rows restart, but tokens see those before: transformers 4.57 looks "
            "for packed sequences only without a cache; model.config.use_cache = False keeps them apart"
        )


def _first_labels(count: int, norm: str) -> str:
    """norm: what --loss_norm is."""
    counted = "counted among the tokens that the loss is divided by"
    rules = {
        "global_tokens": f"is not {counted}, as in transformers 5.x",
        "global_labels": f"is {counted}, as in transformers 4.46 to early 5.x",
    }
    (other,) = rules.keys() - {norm}
    return (
        f"{count:,} rows have a learned label 0, which no token predicts: it {rules[norm]}; --loss_norm "
        f"{other} for the other rule"
    )
