"""Rows longer than the length at which a model's rotary frequencies change: each has its message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
