"""Handles rows that are longer than a model's positions, by RoPE scaling or by an error.

With dynamic and longrope scaling, transformers chooses the rotary frequencies by the padded batch's
width. Beyond the switch length, a row's loss would therefore depend on the other rows of the batch.
"""

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


def extend_positions(config: ModelConfig, model_max_length: int, *, in_table: bool = False) -> str | None:
    """Set linear RoPE scaling in `config` if rows exceed the model's positions. Return a notice, or None.

    in_table: True if positions are embedding rows; then nothing is scaled, and the notice says so. The factor
    is ceil(model_max_length / max_position_embeddings), by docs/spec/fastchat_labels.md, section 7.1.
    ValueError for Phi-3, whose configuration does not allow linear scaling.
    """
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions < 1:
        raise ValueError(
            f"config.json: max_position_embeddings: expected at least 1, got {positions}; write the number "
            "of positions that the model was trained for"
        )
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
        scaling = _scaled_linearly(newer, factor)
    config[key] = scaling
    replaced = f", in place of {json.dumps(before)}" if before else ""
    return (
        f"--model_max_length {model_max_length} is above the model's {positions} positions: they are "
        f"stretched, as FastChat does ({key}: {json.dumps(scaling)}{replaced}); "
        f"--model_max_length {positions} leaves the model's positions as they are"
    )


def _scaled_linearly(rope: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return `rope` (rope_parameters) with linear scaling.

    If each kind of layer has settings of its own, full attention's are scaled.
    """
    linear = {"rope_type": "linear", "factor": factor}
    if isinstance(rope.get(WHOLE), Mapping):
        return {**rope, WHOLE: {**rope[WHOLE], **linear}}
    return {**rope, **linear}


def switch_length(model: PreTrainedModel) -> int | None:
    """Return the row length at which a transformers model's rotary frequencies change; None if never."""
    config = model.config.get_text_config()
    settings = getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None)
    settings = settings if isinstance(settings, dict) else {}
    kind = settings.get("rope_type", settings.get("type"))
    positions = getattr(config, "max_position_embeddings", None)
    if kind == "longrope":
        own = getattr(config, "original_max_position_embeddings", None)
        return own or settings.get("original_max_position_embeddings") or positions
    return positions if kind == "dynamic" else None


def check_switch_length(most: int | None, max_length: int) -> None:
    """Raise ValueError if `max_length` exceeds the switch length `most`.

    None: the frequencies never switch.
    """
    if most is not None and max_length > most:
        raise ValueError(
            f"--model_max_length {max_length}: beyond {most} tokens this model's rotary frequencies depend "
            "on how wide a batch is padded, which differs between FastChat, transformers and fastsft; use "
            f"--model_max_length {most}, or train with transformers' Trainer"
        )


def check_row_lengths(
    most: int | None, dataset: _C.TokenDataset, numbers: list[int] | None, *, training: bool
) -> None:
    """Raise ValueError if a row in `dataset` is longer than the switch length `most`.

    most: the length at which rotary frequencies change; None if they never do. numbers: row numbers in the
    user's data, for messages. training: True to skip rows without targets.
    """
    if (
        most is None or not len(dataset) or dataset.num_packed()
    ):  # Packed rows pass, because positions start again at each conversation.
        return
    lengths = dataset.lengths() * (dataset.target_counts() > 0) if training else dataset.lengths()
    row = int(lengths.argmax())
    if lengths[row] > most:
        raise ValueError(
            f"row {row if numbers is None else numbers[row]} has {lengths[row]} tokens: beyond {most} "
            "this model's rotary frequencies depend on how wide a batch is padded, which differs between "
            f"FastChat, transformers and fastsft; cut it to {most} tokens, or train with transformers' "
            "Trainer"
        )
