"""The message about rows longer than the length at which a model's rotary frequencies change."""

from __future__ import annotations


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
