"""Refusals of a model directory: settings and patches that make the original train another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.model.alterations.check import check_library
from fastsft.originals.places import Places


def check_dropout(config: Mapping[str, Any], where: str, caller: str) -> None:
    """ValueError for dropout that transformers would apply in training.

    Of all names for it, the model families read attention_dropout alone.
    """
    if config.get("attention_dropout"):
        raise ValueError(
            f"{caller}: {where}: attention_dropout is {config['attention_dropout']}; transformers applies it "
            "in training, fastsft trains without dropout; set it to 0.0, or train with transformers' Trainer"
        )


def check_patches(model_type: str, caller: str) -> Places:
    """ValueError for a torch or transformers that a script has patched; what was looked at."""
    from fastsft import _C

    return check_library(model_type, _C.model_families().get(model_type, ""), caller)
