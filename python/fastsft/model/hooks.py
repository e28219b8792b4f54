"""Hooks of a model around training; where it is a directory and nothing more, they do nothing.

LoadedModel overrides ObjectHooks: there a script has objects of transformers whose weights must follow. The
models of fastsft.lora override AdapterHooks: there adapters are trained and saved in the model's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from fastsft.runtime.launch import launch

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from fastsft import _C
    from fastsft.model.saved_parts import AdapterToSave
    from fastsft.planning.memory_plan import Setting


class ObjectHooks:
    """Hooks of a model whose weights only the engine has."""

    engine_leads = False  # while `train` runs, until the trained weights are given back

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The forward pass of the model of transformers that was given, with the newest weights.

        TypeError for a model of a directory, which nothing but the engine computes with. While `train` runs,
        TypeError where ranks hold the weights in shards, of which the module has the old ones, and with
        gradients, which would reach nobody.
        """
        import torch

        module = vars(self).get("module")
        if module is None:
            raise TypeError(
                "fastsft's model cannot be called: trainer.evaluate() and trainer.predict() compute with it; "
                "or give the Trainer a model of transformers, which can be called"
            )
        if self.engine_leads and self.is_sharded():
            raise TypeError(
                f"the model cannot be called while train() runs: {launch().world_size} ranks hold its "
                "weights in shards, and it would compute with the old ones; trainer.evaluate() and "
                "trainer.predict(), on all ranks, compute with the newest"
            )
        if self.engine_leads and torch.is_grad_enabled():
            raise TypeError(
                "the model cannot be called with gradients while train() runs: the engine's step does not "
                "see them; call it within torch.no_grad()"
            )
        return module(*args, **named)

    def is_sharded(self) -> bool:
        """As CausalLM's."""
        return False

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
    """Hooks of a model without adapters."""

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

    def base_weights_next_to(self, directory: str | Path) -> str | None:
        """`base_weights` without the frozen tensors that an adapter saved in `directory` has itself."""
        return self.base_weights()

    def initial_digest(self) -> str:
        """Empty: there are no adapters that begin with values of their own."""
        return ""

    def load_saved_along(self, engine: _C.Engine, directory: str) -> None:
        """Nothing: the weights of a checkpoint are all that it has."""

    def adapter_of(self, state_dict: Mapping[str, torch.Tensor]) -> AdapterToSave | None:
        """None: `state_dict` is a model's."""
        return None

    def adapter_to_save(self) -> AdapterToSave | None:
        """None: the model is saved."""
        return None

    def with_adapters_of_engine(self, setting: Setting) -> Setting:
        """`setting` with the adapters of this model; the same where it has none."""
        return setting
