"""Hooks of a model around training; where it is a directory and nothing more, they do nothing.

LoadedModel overrides ObjectHooks: there a script has objects of transformers whose weights must follow. The
models of fastsft.lora override AdapterHooks: there adapters are trained and saved in the model's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fastsft.model.saved_parts import AdapterToSave
    from fastsft.planning.memory_plan import Setting


class ObjectHooks:
    """Of a model whose weights nobody sees but the engine."""

    def check_unaltered(self, caller: str) -> None:
        """Nothing."""

    def check_no_gradients(self, caller: str) -> None:
        """Nothing."""

    def unseen_gradients(self, event: str) -> AbstractContextManager[None]:
        """Nothing is hidden."""
        return nullcontext()

    def take_changed_weights(self) -> bool:
        """False: weights are the directory's or the engine's."""
        return False

    def take_weights_to_save(self, caller: str) -> bool:
        """False: see `take_changed_weights`."""
        return False

    def begin_training(self, *, has_moved: bool) -> None:
        """Nothing."""

    def end_training(self) -> None:
        """Nothing."""

    def weights_moved(self) -> None:
        """Nothing."""

    def refresh(self) -> None:
        """Nothing."""

    def take_written_weights(self) -> bool:
        """False."""
        return False

    def check_unwritten(self, event: str) -> None:
        """Nothing."""

    def changed_weights(self) -> list[str]:
        """None: see `take_changed_weights`."""
        return []

    def give_back(self) -> None:
        """After training, for models that live outside the engine as well; collective."""


class AdapterHooks:
    """Of a model that is trained whole."""

    def take_first_adapters(self) -> None:
        """Nothing."""

    def adapter_bytes(self) -> int | None:
        """None."""
        return None

    def adapter_facts(self) -> dict[str, Any] | None:
        """None: the whole model is trained."""
        return None

    def base_weights(self) -> str | None:
        """None: a checkpoint has all weights."""
        return None

    def initial_digest(self) -> str:
        """Empty: there are no adapters that begin with values of their own."""
        return ""

    def adapter_of(self, state_dict: Mapping[str, torch.Tensor]) -> AdapterToSave | None:
        """None: `state_dict` is a model's."""
        return None

    def adapter_to_save(self) -> AdapterToSave | None:
        """None: the model is saved."""
        return None

    def with_adapters_of_engine(self, setting: Setting) -> Setting:
        """`setting` with the adapters of this model; the same where it has none."""
        return setting
