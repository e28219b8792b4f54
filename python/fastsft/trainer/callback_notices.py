"""Notices about callbacks of a script before training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastsft.originals.classes import LIBRARIES
from fastsft.originals.functions import is_written_in, plain
from fastsft.runtime.messages import tell

_OF_GRADIENTS = ("on_pre_optimizer_step", "on_optimizer_step")
_WITHIN = (
    "on_epoch_begin", "on_step_begin", "on_substep_end", "on_step_end", "on_epoch_end", "on_evaluate",
    "on_log", "on_save", "on_prediction_step",
)  # fmt: skip


def tell_callbacks(model: Any, callbacks: Iterable[Any]) -> None:
    """A line when callbacks of a script may look for weights and gradients in a module that is not trained.

    model: where it was made of a model of transformers, its parameters do not change until train() returns.
    """
    if getattr(model, "module", None) is None:
        return
    foreign = [each for each in callbacks if _has_any(each, _WITHIN + _OF_GRADIENTS)]
    names = [type(each).__name__ for each in foreign]
    if not names:
        return
    gradients = any(_has_any(each, _OF_GRADIENTS) for each in foreign)
    tell(
        f"callbacks ({', '.join(names)}): the model that was given has its old weights and no gradients "
        "until train() returns" + ("; what is done to gradients has no effect" if gradients else "")
    )


def _has_any(callback: Any, events: Iterable[str]) -> bool:
    """True if a script wrote one of the events."""
    methods = [plain(getattr(callback, event, None)) for event in events]
    return any(
        method is not None and not any(is_written_in(method, library) for library in LIBRARIES)
        for method in methods
    )
