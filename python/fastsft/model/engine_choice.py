"""The engine of a model: of a directory, or of one that transformers has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastsft.model.alterations.finding import refuse
from fastsft.model.alterations.hooks import hooks_of
from fastsft.model.causal_lm import CausalLM
from fastsft.model.family import (
    check_decoder,
    check_dropouts,
    check_family,
    check_floats,
    check_library,
    check_model_code,
    has_model_code,
    is_known_to_library,
    is_native,
    is_vision_text,
)
from fastsft.model.loaded_model import LoadedModel
from fastsft.model.model_config import ModelConfig, config_directory, model_config, model_directory
from fastsft.model.native_support import why_not_native
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def open_model(
    model_name_or_path: str,
    *,
    cache_dir: str | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
) -> CausalLM:
    """The model of a directory or hub name, with the engine of --engine. ValueError as `model_of`.

    Of a hub model config.json comes first: nothing else is downloaded of one that is refused.
    """
    place = config_directory(model_name_or_path, cache_dir)
    config = model_config(str(place))
    _why_generic(config, engine, place, runs_code=trust_remote_code and has_model_code(config))
    directory = model_directory(model_name_or_path, cache_dir, has_code=trust_remote_code)
    return model_of(config, directory, engine=engine, trust_remote_code=trust_remote_code)


def model_of(
    config: ModelConfig, directory: Path, *, engine: str = "auto", trust_remote_code: bool = False
) -> CausalLM:
    """The model with the content of config.json and the files of `directory`, of which none is read here.

    auto: native for the families that it knows where it computes every setting of `config`, else generic.
    trust_remote_code: a model class of the directory is run, by the generic engine. ValueError for a family
    that neither engine trains, quantised weights, and --engine native with code of the directory.
    """
    runs_code = trust_remote_code and has_model_code(config)
    if runs_code:
        check_model_code(config, directory, engine)
    why = _why_generic(config, engine, directory, runs_code=runs_code)
    if why is None:
        return CausalLM.from_pretrained(str(directory), config=config)
    model = _generic(config, directory, why, runs_code=runs_code)
    model.parameter_shapes()  # a configuration that transformers does not take is told before anything else
    model.generation_settings()
    return model


def _generic(config: ModelConfig, directory: Path, why: str, *, runs_code: bool) -> CausalLM:
    from fastsft.model.generic.causal_lm import GenericCausalLM, TrustedCausalLM
    from fastsft.model.generic.vision_text import VisionTextModel

    kind = VisionTextModel if is_vision_text(config) else GenericCausalLM
    model = (TrustedCausalLM if runs_code else kind)(directory, config)
    model.why_generic = why
    return model


def _why_generic(config: Mapping[str, Any], engine: str, directory: Path, *, runs_code: bool) -> str | None:
    """Words for the start page; None where the native engine trains the model, or says why it does not."""
    check_floats(config, directory)
    check_dropouts(config, directory)
    if not runs_code and is_vision_text(config):
        return _why_vision_text(config, engine)
    if not runs_code:
        check_decoder(config, str(directory / "config.json"))
    if engine == "native":
        return None
    if runs_code:
        return "code of the model's directory, by --trust_remote_code"
    if is_native(config):
        return "--engine generic" if engine == "generic" else why_not_native(config)
    if not is_known_to_library(config):
        check_family(config, directory)
    return f"{config.get('model_type')} has no native engine"


def _why_vision_text(config: Mapping[str, Any], engine: str) -> str:
    """As `_why_generic`. ValueError for --engine native."""
    if engine == "native":
        raise ValueError(
            f"--engine native: {config.get('model_type')} is a vision-text model, whose text decoder the "
            "generic engine trains; leave --engine out"
        )
    check_library(config)
    return f"{config.get('model_type')} is a vision-text model"


def as_model(model: object, engine: str = "auto") -> CausalLM:
    """The `model` of a Trainer as a CausalLM: one already, a directory, or a model of transformers.

    engine: --engine, for the other two.
    """
    if isinstance(model, str | Path):
        return open_model(str(model), engine=engine)
    if hasattr(model, "_orig_mod"):
        warn_once("torch.compile of the model has no effect: the engine is compiled")
        refuse(list(hooks_of(cast("PreTrainedModel", model))), "Trainer")
        model = model._orig_mod
    if hasattr(model, "named_parameters") and hasattr(model, "config") and not hasattr(model, "build"):
        return _loaded(cast("PreTrainedModel", model), engine)  # by its methods, whatever its class
    return cast("CausalLM", model)  # what has `build`; the Trainer refuses the rest


def _loaded(model: PreTrainedModel, engine: str) -> LoadedModel:
    why = _why_generic_object(model, engine)
    if why is None:
        return LoadedModel(model)
    from fastsft.model.generic.loaded_model import GenericLoadedModel

    made = GenericLoadedModel(model)
    made.why_generic = why
    return made


def _why_generic_object(model: PreTrainedModel, engine: str) -> str | None:
    """As `_why_generic`, of a model that transformers has loaded."""
    config = {"model_type": getattr(model.config, "model_type", None)}
    if not _is_of_directory(model):
        check_decoder(model.config.to_dict(), "model.config")
    if engine == "native":
        return None
    if is_native(config):
        why = why_not_native(model.config.to_dict()) or _other_modules(model)
        return "--engine generic" if engine == "generic" else why
    if engine == "generic" or is_known_to_library(config):
        return f"{config['model_type']} has no native engine"
    return f"{type(model).__name__} is not of transformers" if _is_of_directory(model) else None


def _other_modules(model: PreTrainedModel) -> str | None:
    """Words for a model whose modules are not those of which the native engine knows what they hold."""
    decoder = getattr(model, "model", None)
    kind = getattr(model.config, "model_type", None)
    is_newer = (kind == "gemma2" and hasattr(getattr(decoder, "embed_tokens", None), "embed_scale")) or (
        kind == "gemma3_text" and not hasattr(decoder, "rotary_emb_local")
    )
    return "transformers 5 builds a given Gemma of other modules" if is_newer else None


def _is_of_directory(model: PreTrainedModel) -> bool:
    """True for a class that transformers has loaded from a model's directory, by trust_remote_code."""
    return type(model).__module__.split(".")[0] == "transformers_modules"
