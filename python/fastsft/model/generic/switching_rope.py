"""Rotary frequencies that change where a batch is longer than some length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.model.rotary_switch import check_switch_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def switch_length(model: PreTrainedModel) -> int | None:
    """Tokens up to which the frequencies of `model` are the same for batches of every width; None: always.

    Beyond them transformers chooses the frequencies by the width of the whole padded batch.
    """
    config = model.config.get_text_config()
    settings = getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None)
    settings = settings if isinstance(settings, dict) else {}
    kind = settings.get("rope_type", settings.get("type"))
    positions = getattr(config, "max_position_embeddings", None)
    if kind == "longrope":
        own = getattr(config, "original_max_position_embeddings", None)
        return own or settings.get("original_max_position_embeddings") or positions
    return positions if kind == "dynamic" else None


def check_switch(model: PreTrainedModel, longest: int) -> None:
    """ValueError where rows of `longest` tokens could have other frequencies than the original's rows."""
    check_switch_length(switch_length(model), longest)
