"""A PeftModel that a script has made: its adapters are trained, and given back to the script's object."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.lora.adapted_model import AdaptedModel, put_values
from fastsft.lora.adapter_files import SAVED_ALONG, AdapterDirectory
from fastsft.lora.peft_modules import (
    base_alone,
    check_modules,
    engine_name,
    is_replaced,
    settings_of,
    trained_values,
    write_values,
)
from fastsft.model.alterations.finding import refuse
from fastsft.model.alterations.hooks import hooks_of
from fastsft.model.base_identity import VALUES, base_identity
from fastsft.model.family import is_native
from fastsft.model.live_weights import LiveWeights, raw_parameters
from fastsft.model.loaded_model import LoadedModel
from fastsft.model.model_config import ModelConfig, model_config
from fastsft.model.weight_digests import tensor_digests, type_of_digest
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell, warn_once

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

    from fastsft import _C


class GivenPeftModel(AdaptedModel):
    """`module`, what peft's get_peft_model makes of a Llama-family model of transformers.

    The engine trains copies of the adapters in fp32, next to a copy of the base model; `give_back` writes
    them over the module's, in their own type. Who reads them while `train` runs gets the newest ones.
    ValueError for adapters that are not as their LoraConfig says, and as LoadedModel for the base model.
    """

    def __init__(self, module: PeftModel) -> None:
        _check_family(module)
        settings = settings_of(module)
        self.module = module
        with base_alone(module) as base:
            self._base = LoadedModel(base)
        super().__init__(self._base, settings, values={})
        check_modules(module, settings, self.targets)
        self._values = trained_values(module, self.targets)
        self._live: LiveWeights | None = None
        self._weights: dict[str, str] = {}
        self._resized = self._find_resized()

    def _find_resized(self) -> list[str]:
        """Names of head and embedding where the vocabulary is not the named base model's.

        Without those that are trained. None where nobody knows that model. Source: peft's "auto".
        """
        named = vocabulary_of(self.settings.base_model)
        if named is None or named == self.vocab_size():
            return []
        trained, there = self.targets.shapes(), {name for name, _ in self._named()}
        found = [name for name in SAVED_ALONG if name in there and name not in trained]
        if found:
            tell(
                f"the vocabulary has {self.vocab_size()} rows, that of {self.settings.base_model} {named}: "
                f"{' and '.join(found)} are saved with the adapter, as peft saves them"
            )
        return found

    if not TYPE_CHECKING:  # a type checker is to find names that are not there

        def __getattr__(self, name: str) -> Any:
            """Anything else is the module's."""
            if name in ("module", "_base"):  # not there yet
                raise AttributeError(name)
            return getattr(self.module, name)

    @property
    def config(self) -> ModelConfig:
        """As LoadedModel's."""
        return self._base.config

    @config.setter
    def config(self, config: ModelConfig) -> None:
        self._base.config = config

    def engine_config(self) -> dict[str, Any]:
        """As LoadedModel's."""
        return self._base.engine_config()

    def check_as_given(self, caller: str, training: bool) -> None:
        """Refuse what makes the module compute something else than the engine. ValueError by name."""
        check_modules(self.module, settings_of(self.module), self.targets)
        refuse(list(hooks_of(self.module)), caller)
        self._base.engine = self.engine
        with base_alone(self.module):
            self._base.check_as_given(caller, training)

    def library_has_changed(self) -> bool:
        """As CausalLM's."""
        return self._base.library_has_changed()

    def load_weights(self, engine: _C.Engine) -> None:
        """The parameters of the module as they are now; collective."""
        with base_alone(self.module):
            self._base.load_weights(engine)
        self._values = trained_values(self.module, self.targets)
        put_values(engine, self._values)
        self._note_weights()

    def take_first_adapters(self) -> None:
        """As AdaptedModel's; they are written into the module, as DDP does."""
        self._is_drawn = True  # peft has drawn them, or loaded them on every rank
        super().take_first_adapters()
        write_values(self.module, self._values)

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(engine_name(name), parameter) for name, parameter in raw_parameters(self.module)]

    def _note_weights(self) -> None:
        self._weights = tensor_digests(self._named())

    def base_weights(self) -> str | None:
        """As AdaptedModel's, of all values; on every rank."""
        return self._identity_without(self.saved_along())

    def base_weights_next_to(self, directory: str | Path) -> str | None:
        """`base_weights` without the frozen tensors that an adapter saved in `directory` has itself.

        These may be others than `saved_along`: older versions saved none, and which they are depends on
        whether the named base model is found. ValueError where no adapter is saved there.
        """
        return self._identity_without(AdapterDirectory(directory).replaced(self.targets))

    def _identity_without(self, along: Container[str]) -> str | None:
        """Of the frozen values but those of the names in `along`."""
        trained = self.targets.shapes()
        frozen = sorted(
            digest
            for name, digest in self._weights.items()
            if name not in trained and not is_replaced(name) and name not in along
        )
        if not frozen:
            return None
        types = (type_of_digest(digest) for digest in frozen)
        return base_identity(VALUES, types, hashlib.sha256("\n".join(frozen).encode()).hexdigest())

    def saved_along(self) -> Mapping[str, torch.Tensor]:
        """As AdaptedModel's: of the module, where its vocabulary is not the base model's."""
        found = dict(self._named())
        return {name: found[name].detach() for name in dict.fromkeys([*self._resized, *self._along])}

    def load_saved_along(self, engine: _C.Engine, directory: str) -> None:
        """As AdaptedModel's, into the module as well."""
        super().load_saved_along(engine, directory)
        there = self.saved_along()
        other = {
            name: value
            for name, value in self._along.items()
            if not there[name].cpu().to(value.dtype).equal(value)
        }
        write_values(self.module, other)
        self._weights.update(tensor_digests((name, there[name]) for name in other))

    def changed_weights(self) -> list[str]:
        """Parameters that somebody has written to since the engine has them."""
        now = tensor_digests(self._named()) if self._weights else {}
        return [name for name in now if now[name] != self._weights.get(name)]

    def take_changed_weights(self) -> bool:
        """Weights that a script has changed count; True for any; collective. ValueError on several ranks."""
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

    def take_weights_to_save(self, caller: str) -> bool:
        """`take_changed_weights` before adapters are saved: collective."""
        if self.engine is None:
            return False
        return self.take_written_weights() if self.engine_leads else self.take_changed_weights()

    @property
    def training(self) -> bool:
        """The module's."""
        return bool(self.module.training)

    def set_mode(self, *, training: bool) -> None:
        """Put the module into the mode that transformers' Trainer puts it into."""
        self.module.train(training)

    def begin_training(self, *, has_moved: bool) -> None:
        """Reads of the module's parameters get the engine's from here on, until `end_training`."""
        assert self.engine is not None  # built before training
        self._live = LiveWeights(self.module, self.engine, sharded=self.is_sharded(), rename=engine_name)
        self._live.begin(self._weights, is_stale=has_moved)

    def end_training(self) -> None:
        """The module's parameters are as they were given or read last."""
        if self._live is not None:
            self._weights, self._live = self._live.end(), None

    def weights_moved(self) -> None:
        """The engine has other weights than before."""
        if self._live is not None:
            self._live.moved()

    def refresh(self) -> None:
        """While `train` runs: write the newest weights into the module."""
        if self._live is not None:
            self._live.refresh()

    def take_written_weights(self) -> bool:
        """While `train` runs: weights that a script wrote into the module count; True for any."""
        return self._live is not None and self._live.take()

    def check_unwritten(self, event: str) -> None:
        """ValueError for weights that a callback of `event` wrote within a step."""
        if self._live is not None:
            self._live.check_unchanged(event)

    def give_back(self) -> None:
        """Write the trained adapters into the module, rounded to their type; collective."""
        self.end_training()
        changed = self.changed_weights()
        if changed:
            warn_once(
                f"Trainer.train: {changed[0]} of the model was changed while train() ran, which has no effect"
            )
        assert self.engine is not None  # which has trained
        write_values(self.module, self.engine.trained_parameters())
        self._note_weights()
        self.engine_leads = False

    def state_dict(self) -> dict[str, torch.Tensor]:
        """As AdaptedModel's, with what a script has changed; collective."""
        self.take_weights_to_save("model.state_dict")
        return super().state_dict()

    def weights_dtype(self) -> str:
        """The type of the base model's first parameter."""
        return self._base.weights_dtype()

    def generation_settings(self) -> dict[str, Any] | None:
        """The module's."""
        return self._base.generation_settings()


def vocabulary_of(base: str | None) -> int | None:
    """Rows of the embedding by config.json of a directory or hub model; None where that is not known."""
    try:
        size = model_config(_cached(base)).get("vocab_size") if base else None
    except (ValueError, OSError):
        return None
    return size if isinstance(size, int) else None


def _cached(base: str) -> str:
    """config.json of a hub model that was loaded before; else `base`."""
    import huggingface_hub
    from huggingface_hub import errors

    if Path(base).is_dir():
        return base
    try:
        found = huggingface_hub.try_to_load_from_cache(base, "config.json")
    except errors.HFValidationError:  # a path
        return base
    return found if isinstance(found, str) else base


def _check_family(module: PeftModel) -> None:
    """ValueError for a base model of transformers that the native engine does not know."""
    base = module.get_base_model()
    model_type = getattr(getattr(base, "config", None), "model_type", None)
    if model_type is not None and not is_native({"model_type": model_type}):
        raise ValueError(
            f"Trainer: model is a PeftModel of {type(base).__name__}, and {model_type} has no native engine, "
            "which alone trains PeftModels: save the base model, and give Trainer(model=<its directory>, "
            "peft_config=LoraConfig(...))"
        )
