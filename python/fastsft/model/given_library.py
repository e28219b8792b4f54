"""Refusals of a model directory: settings and patches that make the original train another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.model.alterations.check import check_library
from fastsft.model.native_support import dropouts_of
from fastsft.originals.snapshots import WatchedNames


def check_dropout(config: Mapping[str, Any], where: str, caller: str) -> None:
    """ValueError for dropout of training, which the native engine has none of."""
    for name, value in dropouts_of(config).items():
        raise ValueError(
            f"{caller}: {where}: {name} is {value}, a dropout of training; the native engine trains without; "
            "set it to 0.0, or train with --engine generic"
        )


def check_patches(model_type: str, caller: str) -> WatchedNames:
    """ValueError for a torch or transformers that a script has patched; what was looked at."""
    from fastsft import _C

    return check_library(model_type, _C.model_families().get(model_type, ""), caller)
