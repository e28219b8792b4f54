"""Notices about callbacks of a script before training."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fastsft.originals.classes import LIBRARIES
from fastsft.originals.functions import is_defined_there, is_written_in, plain
from fastsft.runtime.messages import tell

# In which transformers' model has gradients.
WITH_GRADIENTS = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")
_BASE = "transformers.trainer_callback"


def tell_callbacks(model: object, callbacks: Iterable[object]) -> None:
    """A line when callbacks of a script may look for gradients, which the parameters do not have.

    model: where it was made of a model of transformers, its weights are there (model/live_weights.py).
    """
    if getattr(model, "module", None) is None:
        return
    names = [
        type(each).__name__ for each in callbacks if any(is_own(each, event) for event in WITH_GRADIENTS)
    ]
    if names:
        tell(
            f"callbacks ({', '.join(names)}): the model that was given has no gradients; to ask for "
            "one there is refused"
        )


def is_own(callback: object, event: str) -> bool:
    """True if a script wrote what `callback` does at `event`."""
    method = plain(getattr(callback, event, None))
    return method is not None and not any(is_written_in(method, library) for library in LIBRARIES)


def hears_of_saves(callback: object) -> bool:
    """True if `callback` does something at `on_save` that fastsft did not write: it may read the checkpoint.

    A library's counts, as transformers' trackers upload it.
    """
    method = plain(getattr(callback, "on_save", None))
    if method is None or is_written_in(method, "fastsft"):
        return False
    return _BASE not in sys.modules or not is_defined_there(method, _BASE, "TrainerCallback.on_save")
