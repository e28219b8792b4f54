"""GivenPeftModel: a PeftModel that a script gives to a Trainer, and that gets the trained adapters back."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.lora.adapted_model import AdaptedModel, put_values
from fastsft.lora.adapter_files import EXTRA_TENSORS, AdapterDirectory
from fastsft.lora.peft_modules import (
    base_alone,
    check_modules,
    engine_name,
    is_replaced,
    settings_of,
    trained_values,
    write_values,
)
from fastsft.model.alterations.alteration import refuse
from fastsft.model.alterations.hooks import hooks_of
from fastsft.model.family import is_native
from fastsft.model.live_weights import LiveHooks, LiveWeights, raw_parameters
from fastsft.model.loaded_model import LoadedModel
from fastsft.model.model_config import ModelConfig, model_config
from fastsft.model.native_support import is_mixture
from fastsft.model.weight_identity import VALUES, base_identity, tensor_digests, type_of_digest
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell, warn_once

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

    from fastsft import _C


class GivenPeftModel(LiveHooks, AdaptedModel):
    """A PeftModel around a transformers model of a native family.

    The engine trains float32 copies of the adapters, over a copy of the base model. `copy_to_module` writes
    the trained adapters into the module, in the module's dtype. ValueError if adapters differ from their
    LoraConfig, and as in LoadedModel for the base model.
    """

    module: PeftModel

    def __init__(self, module: PeftModel) -> None:
        _check_family(module)
        settings = settings_of(module)
        self.module = module
        with base_alone(module) as base:
            self._base = LoadedModel(base)
        super().__init__(self._base, settings, values={})
        check_modules(module, settings, self.targets)
        self._values = trained_values(module, self.targets)
        self._weights = {}
        self._resized = self._find_resized()

    def _find_resized(self) -> list[str]:
        """Return the names of head and embedding that are frozen, if the vocabulary was resized.

        The vocabulary was resized if its size differs from that in the base model named by the LoraConfig.
        Empty if that base model is not known. Source: peft's save_embedding_layers="auto".
        """
        size = vocabulary_of(self.settings.base_model)
        if size is None or size == self.vocab_size():
            return []
        trained, own = self.targets.shapes(), {name for name, _ in self._named()}
        names = [name for name in EXTRA_TENSORS if name in own and name not in trained]
        if names:
            tell(
                f"the vocabulary has {self.vocab_size()} rows, that of {self.settings.base_model} {size}: "
                f"{' and '.join(names)} are saved with the adapter, as peft saves them"
            )
        return names

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown names

        def __getattr__(self, name: str) -> Any:
            """Return the module's attribute."""
            if name in ("module", "_base"):  # in __init__, before these attributes are set
                raise AttributeError(name)
            return getattr(self.module, name)

    @property
    def config(self) -> ModelConfig:
        """The base model's configuration."""
        return self._base.config

    @config.setter
    def config(self, config: ModelConfig) -> None:
        self._base.config = config

    def engine_config(self) -> dict[str, Any]:
        return self._base.engine_config()

    def check_as_given(self, caller: str, training: bool) -> None:
        """Raise ValueError if the module was changed so that it computes something else than the engine."""
        check_modules(self.module, settings_of(self.module), self.targets)
        refuse(list(hooks_of(self.module)), caller)
        self._base.engine = self.engine
        with base_alone(self.module):
            self._base.check_as_given(caller, training)

    def library_has_changed(self) -> bool:
        return self._base.library_has_changed()

    def load_weights(self, engine: _C.Engine) -> None:
        """Load the module's parameters into the engine. Collective."""
        with base_alone(self.module):
            self._base.load_weights(engine)
        self._values = trained_values(self.module, self.targets)
        put_values(engine, self._values)
        self._note_weights()

    def broadcast_adapters(self) -> None:
        """Broadcast rank 0's adapters to all ranks and their modules, as DDP does. Collective."""
        self._is_drawn = True  # The values come from peft or from files, and may differ between ranks.
        super().broadcast_adapters()
        write_values(self.module, self._values)

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(engine_name(name), parameter) for name, parameter in raw_parameters(self.module)]

    def _note_weights(self) -> None:
        self._weights = tensor_digests(self._named())

    def base_weights(self) -> str | None:
        """Return the identity for all frozen values, on every rank."""
        return self._identity_without(self.extra_tensors())

    def base_weights_next_to(self, directory: str | Path) -> str | None:
        """Return `base_weights` without the frozen tensors that the adapter in `directory` contains.

        They may differ from `extra_tensors`: these depend on whether the named base model is found, and older
        fastsft versions saved none. ValueError if there is no adapter.
        """
        return self._identity_without(AdapterDirectory(directory).replaced(self.targets))

    def _identity_without(self, extra: Container[str]) -> str | None:
        trained = self.targets.shapes()
        frozen = sorted(
            digest
            for name, digest in self._weights.items()
            if name not in trained and not is_replaced(name) and name not in extra
        )
        if not frozen:
            return None
        types = (type_of_digest(digest) for digest in frozen)
        return base_identity(VALUES, types, hashlib.sha256("\n".join(frozen).encode()).hexdigest())

    def extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the module's head and embedding if its vocabulary differs from the base model's."""
        parameters = dict(self._named())
        return {name: parameters[name].detach() for name in dict.fromkeys([*self._resized, *self._extra])}

    def load_extra_tensors(self, engine: _C.Engine, directory: str) -> None:
        """Load the saved frozen tensors into the engine and the module. Collective."""
        super().load_extra_tensors(engine, directory)
        own = self.extra_tensors()
        changed = {
            name: value
            for name, value in self._extra.items()
            if not own[name].cpu().to(value.dtype).equal(value)
        }
        write_values(self.module, changed)
        self._weights.update(tensor_digests((name, own[name]) for name in changed))

    def changed_weights(self) -> list[str]:
        now = tensor_digests(self._named()) if self._weights else {}
        return [name for name in now if now[name] != self._weights.get(name)]

    def load_changed_weights(self) -> bool:
        """Load weights that a script has changed; return True if any had changed. Collective.

        ValueError if a rank has changed weights and there are several ranks.
        """
        if self.engine is None:
            return False
        changed = self.changed_weights()
        if not any(gather_objects(bool(changed))):
            return False
        if launch().world_size > 1:
            raise ValueError(
                f"Trainer: {changed[0] if changed else 'a weight'} of the PeftModel was changed after the "
                "Trainer was made; on several ranks, change weights before Trainer(model=...)"
            )
        self.load_weights(self.engine)
        return True

    def load_weights_before_save(self, caller: str) -> bool:
        if self.engine is None:
            return False
        return self.load_written_weights() if self.engine_owns_weights else self.load_changed_weights()

    def begin_training(self, *, is_stale: bool) -> None:
        assert self.engine is not None  # built before training
        self._live = LiveWeights(self.module, self.engine, sharded=self.is_sharded(), rename=engine_name)
        self._live.begin(self._weights, is_stale=is_stale)

    def copy_to_module(self) -> None:
        """Write the trained adapters into the module, rounded to its dtype. Collective."""
        self.end_training()
        changed = self.changed_weights()
        if changed:
            warn_once(
                f"Trainer.train: {changed[0]} of the model was changed while train() ran, which has no effect"
            )
        assert self.engine is not None  # called after training
        write_values(self.module, self.engine.trained_parameters())
        self._note_weights()
        self.engine_owns_weights = False

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all trained tensors in float32, by peft's names, with a script's changes. Collective."""
        self.load_weights_before_save("model.state_dict")
        return super().state_dict()

    def weights_dtype(self) -> str:
        return self._base.weights_dtype()

    def generation_settings(self) -> dict[str, Any] | None:
        return self._base.generation_settings()


def vocabulary_of(base: str | None) -> int | None:
    """Return vocab_size for a directory or a cached hub model; None if it is not known."""
    try:
        size = model_config(_cached(base)).get("vocab_size") if base else None
    except (ValueError, OSError):
        return None
    return size if isinstance(size, int) else None


def _cached(base: str) -> str:
    """Return the path of a hub model's cached config.json.

    A directory, or a model without a cache, stays `base`.
    """
    import huggingface_hub
    from huggingface_hub import errors

    if Path(base).is_dir():
        return base
    try:
        cached = huggingface_hub.try_to_load_from_cache(base, "config.json")
    except errors.HFValidationError:  # `base` is a path
        return base
    return cached if isinstance(cached, str) else base


def _check_family(module: PeftModel) -> None:
    """Raise ValueError if the native engine does not support the base model's family."""
    base = module.get_base_model()
    model_type = getattr(getattr(base, "config", None), "model_type", None)
    config = {"model_type": model_type}
    if model_type is not None and (not is_native(config) or is_mixture(config)):
        lacks = "PeftModels here" if is_native(config) else "native engine, which alone trains PeftModels"
        raise ValueError(
            f"Trainer: model is a PeftModel of {type(base).__name__}, and {model_type} has no {lacks}: "
            "save the base model, and give Trainer(model=<its directory>, "
            "peft_config=LoraConfig(...))"
        )
