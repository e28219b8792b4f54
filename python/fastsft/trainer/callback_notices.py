"""Notices about callbacks of a script before training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastsft.originals.classes import LIBRARIES
from fastsft.originals.functions import is_written_in, plain
from fastsft.runtime.messages import tell

_OF_GRADIENTS = ("on_pre_optimizer_step", "on_optimizer_step")


def tell_callbacks(model: Any, callbacks: Iterable[Any]) -> None:
    """A line when callbacks of a script may look for gradients, which the parameters do not have.

    model: where it was made of a model of transformers, its weights are there (model/live_weights.py).
    """
    if getattr(model, "module", None) is None:
        return
    names = [type(each).__name__ for each in callbacks if _has_any(each, _OF_GRADIENTS)]
    if names:
        tell(
            f"callbacks ({', '.join(names)}): the model that was given has no gradients; what is done to "
            "gradients has no effect"
        )


def _has_any(callback: Any, events: Iterable[str]) -> bool:
    """True if a script wrote one of the events."""
    methods = [plain(getattr(callback, event, None)) for event in events]
    return any(
        method is not None and not any(is_written_in(method, library) for library in LIBRARIES)
        for method in methods
    )
