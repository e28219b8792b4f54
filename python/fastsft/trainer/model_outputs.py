"""Outputs of a model that transformers' predictions would have, and which are not computed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_FURTHER = {"output_hidden_states": "hidden_states", "output_attentions": "attentions"}


def check_outputs(config: Mapping[str, Any], ignore_keys: Iterable[str] | None, caller: str) -> None:
    """ValueError unless predictions are the logits alone in transformers, too.

    config: the model's. ignore_keys: outputs that transformers leaves out of predictions.
    """
    ignored = () if ignore_keys is None else tuple(ignore_keys)
    if "logits" in ignored:
        raise ValueError(
            f"{caller}: expected ignore_keys without logits, got {list(ignored)}: predictions are the "
            "logits; for the loss alone use --prediction_loss_only True"
        )
    for name, output in _FURTHER.items():
        if config.get(name) and output not in ignored:
            raise ValueError(
                f"{caller}: model.config.{name} is True, and transformers' predictions would be a tuple of "
                f"logits and {output}; fastsft gives the logits: set it to False, or give "
                f'ignore_keys=["{output}"] (train: ignore_keys_for_eval)'
            )
