"""LoadedModel: a transformers object for a Trainer, which gives the trained weights back to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.check import check_class, check_model, check_quantised
from fastsft.model.alterations.parameters import check_parameters
from fastsft.model.causal_lm import CausalLM
from fastsft.model.config_words import as_computed_here
from fastsft.model.live_weights import LiveHooks, LiveWeights, forbid_gradients
from fastsft.model.live_weights import raw_parameters as _parameters
from fastsft.model.model_config import ModelConfig
from fastsft.model.weight_identity import tensor_digests
from fastsft.originals.snapshots import ModuleSnapshot
from fastsft.ranks import process_group as launcher
from fastsft.ranks.comparison import compare
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from fastsft import _C


class LoadedModel(LiveHooks, CausalLM):
    """A given transformers model from a native family, on any device.

    The engine trains its own copy in the master weights' dtype. `copy_to_module` writes the trained
    weights into the parameters, in their dtype. While `train` runs, reads of the parameters return the newest
    weights (live_weights.py). Attributes that CausalLM lacks are looked up in the module. ValueError for a
    class that the native engine does not support, and for parameters that are frozen, quantised or on the
    meta device.
    """

    module: PreTrainedModel

    def __init__(self, module: PreTrainedModel) -> None:
        self._check_module(module)
        self.module = module
        self._seen = _config_of(module)
        self._config = ModelConfig(self._seen)
        self._module_settings: dict[str, object] = {}
        self._weights = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._differing: dict[str, object] = {}
        self._marks: ModuleSnapshot | None = None  # set while train() runs
        name = str(getattr(module.config, "_name_or_path", "") or "")
        in_memory = Path(f"{type(module).__name__} in memory")
        super().__init__(Path(name) if name and Path(name).is_dir() else in_memory, self._config)

    def _check_module(self, module: PreTrainedModel) -> None:
        _check(module)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown names

        def __getattr__(self, name: str) -> Any:
            """Return the module's attribute, such as `generate`, `save_pretrained` or `device`."""
            if name == "module":  # in __init__, before `module` is set
                raise AttributeError(name)
            return getattr(self.module, name)

    @property
    def config(self) -> ModelConfig:
        """The configuration to save, which includes changes by scripts to the module's configuration."""
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
        """Raise ValueError if the module was changed so that it computes something else than the engine.

        Also ValueError if the modules' settings have changed since the engine was built.
        """
        self._check_module(self.module)
        now, watched = check_model(self.module, self.config, caller, training)
        if self.engine is not None and now.all != self._module_settings:
            changed = [name for name in now.all if now.all[name] != self._module_settings.get(name)]
            raise ValueError(
                f"{caller}: the modules of the model were changed after the Trainer was made: "
                f"{', '.join(changed)}; its engine is made for the old values: set them back, or change them "
                "before Trainer(model=...)"
            )
        self._module_settings, self._differing, self._places = now.all, now.differing, watched
        self._marks = None if self._live is None else ModuleSnapshot(self.module)

    def check_unaltered(self, caller: str) -> None:
        # Comparing snapshots is fast, so the full check runs only after a change.
        if self._marks is not None and self._marks.changed():
            self.check_as_given(caller, training=True)

    def check_no_gradients(self, caller: str) -> None:
        left = self._marks is not None and next(self._marks.with_gradient(), None)
        for name, parameter in _parameters(self.module) if left is not None and left is not False else ():
            if parameter is left:
                raise ValueError(
                    f"{caller}: {name} of the model has a gradient that a script has left there, and "
                    "transformers' next step would add to it; call model.zero_grad() in the same event"
                )

    def forbid_gradients(self, event: str) -> AbstractContextManager[None]:
        return forbid_gradients(list(_parameters(self.module)), event)

    def engine_config(self) -> dict[str, Any]:
        """Return the configuration, with the settings that the modules really have."""
        return {**self.config, **self._differing}

    def load_weights(self, engine: _C.Engine) -> None:
        """Load the module's parameters into the engine's shards, tensor by tensor. Collective."""
        from fastsft import _C

        where = str(self.source_directory)
        self._tell_of_narrow_parameters()
        agreement = AllOrNone(f"taking over {where}")
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
        if not self._weights:
            return []
        now = tensor_digests(_parameters(self.module))
        return [name for name in now if now[name] != self._weights.get(name)]

    def load_changed_weights(self) -> bool:
        if self.engine is None or not any(launcher.gather_objects(bool(self.changed_weights()))):
            return False
        if launch().world_size > 1:
            compare("comparing changed weights", lambda: tensor_digests(_parameters(self.module)))
        self.load_weights(self.engine)
        return True

    def load_weights_before_save(self, caller: str) -> bool:
        if self.engine is None:
            return False
        if self.engine_owns_weights:
            return self.load_written_weights()
        agreement = AllOrNone("comparing the parameters of the model")
        agreement.attempt(lambda: check_parameters(_parameters(self.module), self._shapes, caller))
        agreement.settle(None)
        return self.load_changed_weights()

    def begin_training(self, *, is_stale: bool) -> None:
        assert self.engine is not None  # built before training
        self._live = LiveWeights(self.module, self.engine, sharded=self.is_sharded(), parts=self.stored_parts)
        self._live.begin(self._weights, is_stale=is_stale)
        for _, parameter in _parameters(self.module):
            parameter.grad = None  # transformers' Trainer begins with zero_grad, too

    def end_training(self) -> None:
        super().end_training()
        self._marks = None

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all tensors, with a script's changes, gathered in float32. Collective."""
        self.load_weights_before_save("model.state_dict")
        return super().state_dict()

    def _fill(self, loader: _C.WeightLoader, where: str) -> None:
        for name, parameter in self._given_tensors():
            for stored, part in self.stored_parts(name, parameter.detach().cpu().contiguous()):
                loader.set(stored, part, where)
        ignored = loader.finish(where)
        if ignored:
            raise ValueError(f"{where}: parameters that the model's family does not have: {ignored}")

    def _given_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the module's tensors that a save writes, by name."""
        yield from _parameters(self.module)

    def copy_to_module(self) -> None:
        """Write the trained weights into each rank's module, rounded to the module's dtype. Collective.

        The weights pass through every rank's memory in float32.
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
        assert self.engine is not None  # called after training
        trained = self.engine.named_parameters()
        with torch.no_grad():
            for name, parameter in _parameters(self.module):
                for stored, part in self.stored_parts(name, parameter):
                    part.copy_(trained.pop(stored))
        self._note_weights()
        self.engine_owns_weights = False

    def weights_dtype(self) -> str:
        return str(next(_parameters(self.module))[1].dtype).removeprefix("torch.")

    def generation_settings(self) -> dict[str, Any] | None:
        own = getattr(self.module, "generation_config", None)
        return None if own is None else dict(json.loads(own.to_json_string(use_diff=True)))


def _config_of(module: PreTrainedModel) -> dict[str, Any]:
    """Return config.json as save_pretrained would write it, without keys that this release ignores."""
    return as_computed_here(json.loads(module.config.to_json_string(use_diff=True)))


def _prefix(module: PreTrainedModel) -> str | None:
    from fastsft import _C

    return _C.model_families().get(str(getattr(module.config, "model_type", None)))


def _check(module: PreTrainedModel) -> None:
    from fastsft import _C

    classes = ", ".join(f"{name}ForCausalLM" for name in _C.model_families().values())
    check_class(module, _prefix(module), classes)
    check_quantised(module)
    check_loss_kwargs(module)
    check_parameters_of(module)


def check_loss_kwargs(module: PreTrainedModel) -> None:
    """Raise ValueError if `accepts_loss_kwargs` is False.

    transformers would then average micro-batch losses.
    """
    if getattr(module, "accepts_loss_kwargs", True) is False:
        raise ValueError(
            "Trainer: model.accepts_loss_kwargs is False, and transformers would average the losses of "
            "micro-batches; fastsft divides by the tokens of the step: take the attribute away, or train "
            "with transformers' Trainer"
        )


def check_parameters_of(module: PreTrainedModel) -> None:
    """Raise ValueError for parameters that are frozen, quantised or on the meta device."""
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
