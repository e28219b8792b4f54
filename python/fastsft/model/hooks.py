"""A model's default hooks. They fit a model directory without adapters, whose weights only the engine has.

LoadedModel overrides ObjectHooks for a transformers object, whose parameters scripts read and write during
training. The models in fastsft.lora override AdapterHooks, because they train and save adapters. Models in
the generic engine override GenericHooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from fastsft.runtime.launch import launch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fastsft import _C
    from fastsft.model.generic.memory import ActivationSizes
    from fastsft.model.stored_weights import StoredTensor
    from fastsft.planning.memory_plan import EngineSettings


class ObjectHooks:
    """Hooks that keep a given transformers object's parameters equal to the engine's weights."""

    engine_owns_weights = False  # True from the start of `train` until `copy_to_module`

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the forward pass of the given transformers model with the newest weights.

        TypeError for a model directory, which has no module. While `train` runs, also TypeError if the
        weights are sharded, because the module then has old weights, and if gradients are enabled, because
        the engine's step would ignore them.
        """
        import torch

        module = vars(self).get("module")
        if module is None:
            raise TypeError(
                "fastsft's model cannot be called: trainer.evaluate() and trainer.predict() compute with it; "
                "or give the Trainer a model of transformers, which can be called"
            )
        if self.engine_owns_weights and self.is_sharded():
            raise TypeError(
                f"the model cannot be called while train() runs: {launch().world_size} ranks hold its "
                "weights in shards, and it would compute with the old ones; trainer.evaluate() and "
                "trainer.predict(), on all ranks, compute with the newest"
            )
        if self.engine_owns_weights and torch.is_grad_enabled():
            raise TypeError(
                "the model cannot be called with gradients while train() runs: the engine's step does not "
                "see them; call it within torch.no_grad()"
            )
        return module(*args, **named)

    def children(self) -> Iterator[nn.Module]:
        """Return no modules, but add the settings that torch's FSDP.state_dict_type looks for."""
        add_fsdp_settings(cast("nn.Module", self))  # torch's functions take any object
        return iter(())

    def is_sharded(self) -> bool:
        """Return True if each rank holds only a part of the weights."""
        return False

    def check_unaltered(self, caller: str) -> None:
        """Raise ValueError if a script has changed the module while `train` runs."""

    def check_no_gradients(self, caller: str) -> None:
        """Raise ValueError if a script has left gradients; transformers would add the next step's to them."""

    def forbid_gradients(self, event: str) -> AbstractContextManager[None]:
        """Raise ValueError if code in this context reads `grad`.

        At `event`, only transformers has gradients.
        """
        return nullcontext()

    def load_changed_weights(self) -> bool:
        """Load weights that a script has changed into the engine; return True if any were changed.

        Collective.

        ValueError if the weights differ between ranks.
        """
        return False

    def load_weights_before_save(self, caller: str) -> bool:
        """Check the module's parameter shapes, and call `load_changed_weights`. Collective.

        caller: message prefix.
        """
        return False

    def begin_training(self, *, is_stale: bool) -> None:
        """Make reads of the module's parameters return the engine's weights until `end_training`.

        is_stale: True if the engine has newer weights than the module.
        """

    def end_training(self) -> None:
        """Stop watching the module's parameters."""

    def mark_stale(self) -> None:
        """Record that a step or a checkpoint has given the engine new weights."""

    def refresh(self) -> None:
        """Write the newest weights into the module during `train`, so that other processes can copy it."""

    def load_written_weights(self) -> bool:
        """Load weights that a script wrote during `train` into the engine; return True if there were any."""
        return False

    def check_no_writes(self, event: str) -> None:
        """Raise ValueError if a callback at `event` wrote weights between a step's passes and update."""

    def changed_weights(self) -> list[str]:
        """Return the parameter names that differ from the values last exchanged with the engine."""
        return []

    def copy_to_module(self) -> None:
        """Write the trained weights into the given module. Collective."""


class AdapterToSave(Protocol):
    """Adapters that a save writes instead of the whole model.

    A protocol, because fastsft.lora implements it and imports this module.
    """

    def write(self, directory: str, /) -> list[_C.FileDigest]:
        """Write the files into a new directory and sync them to disk. Return their digests."""


class AdapterHooks:
    """Hooks for adapters. By default, a model has no adapters, and a checkpoint contains all weights."""

    def broadcast_adapters(self) -> None:
        """Broadcast the adapters that rank 0 has initialized to all ranks. Collective."""

    def adapter_bytes(self) -> int | None:
        """Return an adapter's file size in bytes; None without adapters."""
        return None

    def adapter_facts(self) -> dict[str, Any] | None:
        """Return the adapter settings that must not change when a run resumes; None without adapters."""
        return None

    def base_weights(self) -> str | None:
        """Return the frozen base weights' identity; None without adapters, or if it is unknown."""
        return None

    def base_weights_next_to(self, directory: str | Path) -> str | None:
        """Return `base_weights` without the frozen tensors that the adapter in `directory` contains."""
        return self.base_weights()

    def initial_digest(self) -> str:
        """Return the initial adapters' digest; empty without adapters."""
        return ""

    def load_extra_tensors(self, engine: _C.Engine, directory: str) -> None:
        """Load the frozen tensors that were saved with the adapter in `directory`. Collective."""

    def adapter_from_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> AdapterToSave | None:
        """Return the adapter in `state_dict`; None if `state_dict` holds a whole model."""
        return None

    def adapter_to_save(self) -> AdapterToSave | None:
        """Return the adapters with their current values; None if the whole model is saved. Collective."""
        return None

    def with_adapters_of_engine(self, setting: EngineSettings) -> EngineSettings:
        """Return a copy of `setting` with this model's adapters."""
        return setting


class GenericHooks:
    """Hooks for tensors, files and memory. Models in the generic engine override these hooks."""

    def positions_in_table(self) -> bool:
        """Return True if positions are embedding rows, which RoPE scaling cannot extend."""
        return False

    def stored_parts(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors in engine and files that make up transformers' parameter `name`, as views of
        `tensor`.

        tensor: the parameter, or a tensor with the same shape, such as an optimizer moment.
        """
        yield name, tensor

    def buffer_dtypes(self) -> dict[str, torch.dtype]:
        """Return the dtypes of engine tensors that are buffers in transformers' model, by name."""
        return {}

    def carried(self) -> list[StoredTensor]:
        """Return the file tensors that the engine does not have, and that a save copies unchanged."""
        return []

    def class_name(self) -> str | None:
        """Return the transformers class that computes the passes; None for a native family."""
        return None

    def code_files(self) -> dict[str, str]:
        """Return the Python files that a saved model needs, by name."""
        return {}

    def activation_sizes(self, dtype: str) -> ActivationSizes | None:
        """Return a generic engine model's activation sizes; None in the native engine."""
        return None


def add_fsdp_settings(model: nn.Module) -> None:
    """Add the settings that torch's `FSDP.state_dict_type(model, ...)` sets and restores.

    They have no effect.

    FastChat's scripts save inside this context. Without settings of an FSDP module, the context fails when it
    ends (`KeyError: None`, torch 2.11). RuntimeError if this torch release keeps the settings elsewhere.
    """
    try:
        from torch.distributed._composable_state import _insert_module_state
        from torch.distributed.fsdp._common_utils import _FSDPState, _get_module_fsdp_state

        if _get_module_fsdp_state(model) is None:
            settings = _FSDPState()
            vars(model)["fsdp_settings"] = settings  # torch keeps only a weak reference
            _insert_module_state(model, settings)
    except (ImportError, AttributeError, TypeError, AssertionError) as error:
        raise RuntimeError(
            "torch's FSDP.state_dict_type cannot be used around a fastsft model with this torch "
            f"({error}); save with trainer.save_model(), or fastsft.train.trainer_save_model_safe(trainer)"
        ) from error
