"""Rows longer than the length at which a model's rotary frequencies change: each has its message."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastsft.model.model_config import ModelConfig
from fastsft.model.rope_words import PARAMETERS, SCALING, WHOLE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C


def check_switch_length(most: int | None, longest: int) -> None:
    """ValueError where rows of `longest` tokens could have other frequencies than the original's rows.

    most: tokens up to which the frequencies are the same; None: any number.
    """
    if most is not None and longest > most:
        raise ValueError(
            f"--model_max_length {longest}: beyond {most} tokens this model's rotary frequencies depend on "
            "how wide a batch is padded, which differs between FastChat, transformers and fastsft; use "
            f"--model_max_length {most}, or train with transformers' Trainer"
        )


def check_row_lengths(
    most: int | None, native: _C.TokenDataset, numbers: list[int] | None, *, training: bool
) -> None:
    """ValueError for a row of `native` of more than `most` tokens (None: any number).

    numbers: of its rows, for messages. training: rows that teach nothing are not computed.
    """
    if most is None or not len(native) or native.num_packed():  # the engine sees positions of packed ones
        return
    lengths = native.lengths() * (native.target_counts() > 0) if training else native.lengths()
    row = int(lengths.argmax())
    if lengths[row] > most:
        raise ValueError(
            f"row {row if numbers is None else numbers[row]} has {lengths[row]} tokens: beyond {most} "
            "this model's rotary frequencies depend on how wide a batch is padded, which differs between "
            f"FastChat, transformers and fastsft; cut it to {most} tokens, or train with transformers' "
            "Trainer"
        )


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


def stretch_positions(config: ModelConfig, model_max_length: int, *, in_table: bool = False) -> str | None:
    """Scale rope linearly when examples are longer than the model's positions; a line about it, or None.

    in_table: positions are looked up, and stay as they are.
    Factor: ceil(model_max_length / max_position_embeddings). Rule: docs/spec/fastchat_labels.md, section 7.1.
    ValueError for Phi-3, whose configuration takes no linear scaling.
    """
    positions = config.get("max_position_embeddings")
    if not positions or model_max_length <= positions:
        return None
    if in_table:
        return (
            f"--model_max_length {model_max_length} is above the model's {positions} positions, which are "
            "rows of a table and cannot be stretched: a longer conversation ends the run"
        )
    if config.get("model_type") == "phi3":
        raise ValueError(
            f"--model_max_length {model_max_length} is above the model's {positions} positions; stretched as "
            "FastChat does they would have linear scaling, and transformers opens no Phi-3 model with that: "
            f"use --model_max_length {positions}"
        )
    newer = config.get(PARAMETERS)
    before = newer or config.get(SCALING)
    factor = float(math.ceil(model_max_length / positions))
    scaling: dict[str, Any] = {"type": "linear", "factor": factor}
    key = PARAMETERS if newer else SCALING
    if newer:
        scaling = _stretched(newer, factor)
    config[key] = scaling
    replaced = f", in place of {json.dumps(before)}" if before else ""
    return (
        f"--model_max_length {model_max_length} is above the model's {positions} positions: they are "
        f"stretched, as FastChat does ({key}: {json.dumps(scaling)}{replaced}); "
        f"--model_max_length {positions} leaves the model's positions as they are"
    )


def _stretched(rope: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """rope_parameters with linear scaling: of the layers that see all tokens, where kinds have their own."""
    linear = {"rope_type": "linear", "factor": factor}
    if isinstance(rope.get(WHOLE), Mapping):
        return {**rope, WHOLE: {**rope[WHOLE], **linear}}
    return {**rope, **linear}
