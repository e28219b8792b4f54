"""A model that transformers has loaded: its weights are trained, and given back to the caller's object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.check import held_settings
from fastsft.model.alterations.form import check_parameters
from fastsft.model.alterations.marks import Marks
from fastsft.model.alterations.wrappers import check_class, check_quantised
from fastsft.model.causal_lm import CausalLM
from fastsft.model.live_weights import LiveWeights
from fastsft.model.live_weights import raw_parameters as _parameters
from fastsft.model.model_config import ModelConfig
from fastsft.model.unseen_gradients import unseen_gradients
from fastsft.model.weight_digests import tensor_digests
from fastsft.model.words.both import as_computed_here
from fastsft.ranks import process_group as launcher
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.comparison import compare
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from fastsft import _C


class LoadedModel(CausalLM):
    """`module`, a Llama-family model of transformers, wherever its parameters are.

    The engine trains its own copy in the master type; `give_back` writes it over the parameters, in their
    own type. Who reads them while `train` runs gets the newest ones (live_weights.py). Names that a CausalLM
    lacks are the module's. ValueError for a class the engine does not know, and for parameters that are
    frozen, quantised or not there (meta).
    """

    def __init__(self, module: PreTrainedModel) -> None:
        self._check_module(module)
        self.module = module
        self._seen = _config_of(module)
        self._config = ModelConfig(self._seen)
        self._held: dict[str, object] = {}
        self._weights: dict[
            str, str
        ] = {}  # digests of the parameters when they were last taken or given back
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._differing: dict[str, object] = {}
        self._live: LiveWeights | None = None
        self._marks: Marks | None = None  # of the running train()
        name = str(getattr(module.config, "_name_or_path", "") or "")
        in_memory = Path(f"{type(module).__name__} in memory")
        super().__init__(Path(name) if name and Path(name).is_dir() else in_memory, self._config)

    def _check_module(self, module: PreTrainedModel) -> None:
        _check(module)

    if not TYPE_CHECKING:  # a type checker is to find names that are not there

        def __getattr__(self, name: str) -> Any:
            """Anything else (`generate`, `save_pretrained`, `device`) is the module's."""
            if name == "module":  # not there yet
                raise AttributeError(name)
            return getattr(self.module, name)

    @property
    def config(self) -> ModelConfig:
        """As it is saved; what the caller changes in the module's own configuration is taken over."""
        now = _config_of(self.module)
        for key in self._seen.keys() | now.keys():
            if now.get(key) == self._seen.get(key) and (key in now) == (key in self._seen):
                continue
            if key in now:
                self._config[key] = now[key]
            else:
                self._config.pop(key, None)
        self._seen = now
        return self._config

    @config.setter
    def config(self, config: ModelConfig) -> None:
        self._config = config

    def check_as_given(self, caller: str, training: bool) -> None:
        """Refuse what makes the module compute something else than the engine (alterations/check.py).

        ValueError also where the modules hold other settings than the engine was built with.
        """
        self._check_module(self.module)
        now = held_settings(self.module, _prefix(self.module) or "", self.config, caller, training)
        if self.engine is not None and now.held != self._held:
            changed = [name for name in now.held if now.held[name] != self._held.get(name)]
            raise ValueError(
                f"{caller}: the modules of the model were changed after the Trainer was made: "
                f"{', '.join(changed)}; its engine is made for the old values: set them back, or change them "
                "before Trainer(model=...)"
            )
        self._held, self._differing, self._places = now.held, now.values, now.places
        self._marks = None if self._live is None else Marks(self.module)

    def check_unaltered(self, caller: str) -> None:
        """While `train` runs: `check_as_given` where something of the module is not as it was; fast."""
        if self._marks is not None and self._marks.changed():
            self.check_as_given(caller, training=True)

    def check_no_gradients(self, caller: str) -> None:
        """ValueError for gradients that a script has left, to which transformers' next step would add."""
        left = self._marks is not None and next(self._marks.with_gradient(), None)
        for name, parameter in _parameters(self.module) if left is not None and left is not False else ():
            if parameter is left:
                raise ValueError(
                    f"{caller}: {name} of the model has a gradient that a script has left there, and "
                    "transformers' next step would add to it; call model.zero_grad() in the same event"
                )

    def unseen_gradients(self, event: str) -> AbstractContextManager[None]:
        """A time in which transformers' model has gradients: to ask for one is a ValueError."""
        return unseen_gradients(list(_parameters(self.module)), event)

    def engine_config(self) -> dict[str, Any]:
        """The configuration with what the modules hold, which counts where they differ."""
        return {**self.config, **self._differing}

    def load_weights(self, engine: _C.Engine) -> None:
        """The module's parameters into the engine's shards, tensor by tensor; collective."""
        from fastsft import _C

        where = str(self.source_directory)
        self._tell_of_narrow_parameters()
        agreement = Agreement(f"taking over {where}")
        agreement.attempt(lambda: self._fill(_C.WeightLoader(engine), where))
        agreement.settle(None)
        _C.publish_weights(engine)
        self._note_weights()

    def _tell_of_narrow_parameters(self) -> None:
        dtypes = {str(parameter.dtype).removeprefix("torch.") for _, parameter in _parameters(self.module)}
        if narrow := sorted(dtypes & {"bfloat16", "float16"}):
            warn_once(
                f"the model was given with {' and '.join(narrow)} parameters: float32 masters of them are "
                "trained, and they are given back rounded; transformers would round each update"
            )

    def _note_weights(self) -> None:
        self._weights = tensor_digests(_parameters(self.module))
        self._shapes = {name: tuple(parameter.shape) for name, parameter in _parameters(self.module)}

    def changed_weights(self) -> list[str]:
        """Parameters that somebody has replaced or written to since the engine has them."""
        if not self._weights:
            return []
        now = tensor_digests(_parameters(self.module))
        return [name for name in now if now[name] != self._weights.get(name)]

    def take_changed_weights(self) -> bool:
        """Weights that a script has changed since the engine has them count; True for any; collective.

        ValueError when they differ between ranks.
        """
        if self.engine is None or not any(launcher.gather_objects(bool(self.changed_weights()))):
            return False
        if launch().world_size > 1:
            compare("comparing changed weights", lambda: tensor_digests(_parameters(self.module)))
        self.load_weights(self.engine)
        return True

    def take_weights_to_save(self, caller: str) -> bool:
        """`take_changed_weights` before weights are saved or handed out: collective.

        caller: what a message begins with. ValueError for parameters that the engine does not have in this
        form, and when they differ between ranks.
        """
        if self.engine is None:
            return False
        if self.engine_leads:
            return self.take_written_weights()
        agreement = Agreement("comparing the parameters of the model")
        agreement.attempt(lambda: check_parameters(_parameters(self.module), self._shapes, caller))
        agreement.settle(None)
        return self.take_changed_weights()

    @property
    def training(self) -> bool:
        """The module's."""
        return bool(self.module.training)

    def set_mode(self, *, training: bool) -> None:
        """Put the module into the mode that transformers' Trainer puts it into."""
        self.module.train(training)

    def begin_training(self, *, has_moved: bool) -> None:
        """Reads of the module's parameters get the engine's weights from here on, until `end_training`.

        has_moved: the engine has others than the module.
        """
        assert self.engine is not None  # built before training
        self._live = LiveWeights(self.module, self.engine, sharded=self.is_sharded(), parts=self.stored_parts)
        self._live.begin(self._weights, is_stale=has_moved)
        for _, parameter in _parameters(self.module):
            parameter.grad = None  # as transformers begins

    def end_training(self) -> None:
        """The module's parameters are as they were given or read last; `give_back` writes the newest."""
        if self._live is not None:
            self._weights, self._live = self._live.end(), None
            self._marks = None

    def weights_moved(self) -> None:
        """The engine has other weights than before: after a step, or a checkpoint that was loaded."""
        if self._live is not None:
            self._live.moved()

    def refresh(self) -> None:
        """While `train` runs: write the newest weights into the module, for processes that copy it."""
        if self._live is not None:
            self._live.refresh()

    def take_written_weights(self) -> bool:
        """While `train` runs: weights that a script wrote into the module count from here on; True for any.

        ValueError for what cannot be followed (live_weights.py).
        """
        return self._live is not None and self._live.take()

    def check_unwritten(self, event: str) -> None:
        """ValueError for weights that a callback of `event` wrote within a step."""
        if self._live is not None:
            self._live.check_unchanged(event)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """As CausalLM's, with what a script has changed; collective. ValueError as take_weights_to_save."""
        self.take_weights_to_save("model.state_dict")
        return super().state_dict()

    def _fill(self, loader: _C.WeightLoader, where: str) -> None:
        for name, parameter in self._given_tensors():
            for stored, part in self.stored_parts(name, parameter.detach().cpu().contiguous()):
                loader.set(stored, part, where)
        ignored = loader.finish(where)
        if ignored:
            raise ValueError(f"{where}: parameters that the model's family does not have: {ignored}")

    def _given_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All of the module that is saved."""
        yield from _parameters(self.module)

    def give_back(self) -> None:
        """Write the trained weights into the module, rounded to its type; collective.

        Every rank's module gets them; they pass through the memory of each rank whole, in fp32.
        """
        import torch

        self.end_training()
        try:
            self.check_as_given("Trainer.train", training=True)
        except ValueError as error:
            warn_once(f"{error} (changed while train() ran: without effect on this run)")
        changed = self.changed_weights()
        if changed:
            warn_once(
                f"Trainer.train: {changed[0]} of the model was changed while train() ran, which has no "
                "effect: the engine trains its own copy; change weights before train()"
            )
        assert self.engine is not None  # which has trained
        trained = self.engine.named_parameters()
        with torch.no_grad():
            for name, parameter in _parameters(self.module):
                for stored, part in self.stored_parts(name, parameter):
                    part.copy_(trained.pop(stored))
        self._note_weights()
        self.engine_leads = False

    def weights_dtype(self) -> str:
        """The type of the module's first parameter."""
        return str(next(_parameters(self.module))[1].dtype).removeprefix("torch.")

    def generation_settings(self) -> dict[str, Any] | None:
        """The module's."""
        own = getattr(self.module, "generation_config", None)
        return None if own is None else dict(json.loads(own.to_json_string(use_diff=True)))


def _config_of(module: PreTrainedModel) -> dict[str, Any]:
    """config.json as save_pretrained would write it, of what the module computes with."""
    return as_computed_here(json.loads(module.config.to_json_string(use_diff=True)))


def _prefix(module: PreTrainedModel) -> str | None:
    from fastsft import _C

    return _C.model_families().get(str(getattr(module.config, "model_type", None)))


def _check(module: PreTrainedModel) -> None:
    from fastsft import _C

    known = ", ".join(f"{name}ForCausalLM" for name in _C.model_families().values())
    check_class(module, _prefix(module), known)
    check_quantised(module)
    check_loss_kwargs(module)
    check_parameters_of(module)


def check_loss_kwargs(module: PreTrainedModel) -> None:
    """ValueError for a model that says that it does not take the tokens of the step."""
    if getattr(module, "accepts_loss_kwargs", True) is False:
        raise ValueError(
            "Trainer: model.accepts_loss_kwargs is False, and transformers would average the losses of "
            "micro-batches; fastsft divides by the tokens of the step: take the attribute away, or train "
            "with transformers' Trainer"
        )


def check_parameters_of(module: PreTrainedModel) -> None:
    """ValueError for parameters that are frozen, quantised or not there."""
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            raise ValueError(
                f"Trainer: {name} is frozen (requires_grad False), but fastsft trains all parameters; call "
                "model.requires_grad_(True)"
            )
        if parameter.is_meta or not parameter.is_floating_point():
            raise ValueError(
                f"Trainer: {name} is {parameter.dtype} on {parameter.device}; load the model in float32, "
                "bfloat16 or float16, without quantisation and device_map"
            )
