"""The engine of a model: of a directory, or of one that transformers has loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastsft.model.alterations.finding import refuse
from fastsft.model.alterations.hooks import hooks_of
from fastsft.model.causal_lm import CausalLM, model_config, model_directory
from fastsft.model.family import is_known_to_library, is_native
from fastsft.model.loaded_model import LoadedModel
from fastsft.runtime.messages import warn_once


def open_model(model_name_or_path: str, *, cache_dir: str | None = None, engine: str = "auto") -> CausalLM:
    """The model of a directory or hub name, with the engine of --engine.

    auto: native for the families that it knows. ValueError as `CausalLM.from_pretrained`, also for a family
    that transformers does not know either.
    """
    if engine == "native":
        return CausalLM.from_pretrained(model_name_or_path, cache_dir=cache_dir)
    directory = model_directory(model_name_or_path, cache_dir)
    config = model_config(str(directory))
    if engine == "auto" and (is_native(config) or not is_known_to_library(config)):
        return CausalLM.from_pretrained(str(directory), config=config)
    from fastsft.model.generic.causal_lm import GenericCausalLM

    return GenericCausalLM.from_pretrained(str(directory), config=config)


def as_model(model: Any, engine: str = "auto") -> Any:
    """The `model` of a Trainer as a CausalLM: one already, a directory, or a model of transformers.

    engine: --engine, for the other two.
    """
    if isinstance(model, str | Path):
        return open_model(str(model), engine=engine)
    if hasattr(model, "_orig_mod"):
        warn_once("torch.compile of the model has no effect: the engine is compiled")
        refuse(list(hooks_of(model)), "Trainer")
        model = model._orig_mod
    if hasattr(model, "named_parameters") and hasattr(model, "config") and not hasattr(model, "build"):
        return _loaded(model, engine)
    return model


def _loaded(model: Any, engine: str) -> Any:
    config = {"model_type": getattr(model.config, "model_type", None)}
    native = engine == "native" or is_native(config) or not is_known_to_library(config)
    if engine != "generic" and native:
        return LoadedModel(model)
    from fastsft.model.generic.loaded_model import GenericLoadedModel

    return GenericLoadedModel(model)
