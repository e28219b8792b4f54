"""Opens a model, from a directory or a given object, and chooses the engine that computes it.

The native engine has C++ kernels for a family. The generic engine trains all other models: transformers
computes forward and backward, with the same shards and optimizer. `why_generic` gives the reason for the
generic engine, for the start page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastsft.model.alterations.alteration import refuse
from fastsft.model.alterations.hooks import hooks_of
from fastsft.model.causal_lm import CausalLM
from fastsft.model.family import (
    check_decoder,
    check_dropouts,
    check_family,
    check_floats,
    check_model_code,
    check_vision_text,
    has_model_code,
    is_known_to_library,
    is_native,
    is_vision_text,
)
from fastsft.model.loaded_model import LoadedModel
from fastsft.model.model_config import ModelConfig, config_directory, model_config, model_directory
from fastsft.model.native_support import is_mixture, why_not_native
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
    """Open a model directory or a hub model in the engine that --engine names. ValueError as in `model_of`.

    A hub model's config.json is downloaded and checked first. Nothing else is downloaded for a rejected
    model.
    """
    folder = config_directory(model_name_or_path, cache_dir)
    config = model_config(str(folder))
    _why_generic(config, engine, folder, runs_code=trust_remote_code and has_model_code(config))
    directory = model_directory(model_name_or_path, cache_dir, has_code=trust_remote_code)
    return model_of(config, directory, engine=engine, trust_remote_code=trust_remote_code)


def model_of(
    config: ModelConfig, directory: Path, *, engine: str = "auto", trust_remote_code: bool = False
) -> CausalLM:
    """Make the model in `directory` by its config.json, without reading weights.

    engine: "auto" chooses the native engine if it supports every setting in `config`, else the generic
    engine.
    trust_remote_code: True to run the directory's model class in the generic engine. ValueError for a family
    that neither engine trains, for quantised weights, and for --engine native with the directory's code.
    """
    runs_code = trust_remote_code and has_model_code(config)
    if runs_code:
        check_model_code(config, directory, engine)
    why = _why_generic(config, engine, directory, runs_code=runs_code)
    if why is None:
        native = CausalLM.from_pretrained(str(directory), config=config)
        native.engine_given = engine
        return native
    return _checked_generic(config, directory, why, runs_code=runs_code)


def with_adaptable_experts(model: CausalLM) -> CausalLM:
    """Return a native mixture of experts in the generic engine, which has adapters for experts.

    ValueError if --engine native was given, and for an object of transformers.
    """
    kind = model.config.get("model_type")
    if model.engine_given == "native" or type(model) is not CausalLM:
        raise ValueError(
            f"LoRA: the native engine has no adapters for experts and routers of {kind}; name attention "
            "alone (--lora_target_modules q_proj k_proj v_proj o_proj), or give its directory without "
            "--engine native: the generic engine trains them"
        )
    why = f"adapters of experts of {kind}"
    return _checked_generic(model.config, model.source_directory, why, runs_code=False)


def _checked_generic(config: ModelConfig, directory: Path, why: str, *, runs_code: bool) -> CausalLM:
    model = _generic(config, directory, why, runs_code=runs_code)
    # Raises transformers' error for a wrong configuration, before anything else happens.
    model.parameter_shapes()
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
    """Return why the generic engine computes the model.

    None for the native engine, which may still reject the model.
    """
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
    """Return why a vision-text model needs the generic engine. ValueError for --engine native."""
    if engine == "native":
        raise ValueError(
            f"--engine native: {config.get('model_type')} is a vision-text model, whose text decoder the "
            "generic engine trains; leave --engine out"
        )
    check_vision_text(config)
    return f"{config.get('model_type')} is a vision-text model"


def as_model(model: object, engine: str = "auto") -> CausalLM:
    """Return a Trainer's `model` as a CausalLM, opening a directory or transformers object first.

    engine: the --engine value, for a directory or transformers object.
    """
    if isinstance(model, str | Path):
        return open_model(str(model), engine=engine)
    if hasattr(model, "_orig_mod"):
        warn_once("torch.compile of the model has no effect: the engine is compiled")
        refuse(list(hooks_of(cast("PreTrainedModel", model))), "Trainer")
        model = model._orig_mod
    if hasattr(model, "named_parameters") and hasattr(model, "config") and not hasattr(model, "build"):
        return _loaded(cast("PreTrainedModel", model), engine)  # duck typing: any class with these attributes
    return cast("CausalLM", model)  # the Trainer refuses objects without `build`


def _loaded(model: PreTrainedModel, engine: str) -> LoadedModel:
    why = _why_generic_object(model, engine)
    if why is None:
        return LoadedModel(model)
    from fastsft.model.generic.loaded_model import GenericLoadedModel

    made = GenericLoadedModel(model)
    made.why_generic = why
    return made


def _why_generic_object(model: PreTrainedModel, engine: str) -> str | None:
    """Return why the generic engine computes a given transformers model; None for the native engine."""
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
    """Return why the native engine cannot read all settings from the object's modules; None if it can."""
    decoder = getattr(model, "model", None)
    kind = getattr(model.config, "model_type", None)
    if decoder is not None and is_mixture({"model_type": kind}) and _has_stacked_experts(model):
        return "transformers 5 has all experts of a layer in one parameter"
    is_newer = (kind == "gemma2" and hasattr(getattr(decoder, "embed_tokens", None), "embed_scale")) or (
        kind == "gemma3_text" and not hasattr(decoder, "rotary_emb_local")
    )
    return "transformers 5 builds a given Gemma of other modules" if is_newer else None


def _has_stacked_experts(model: PreTrainedModel) -> bool:
    return any(name.endswith(".experts.gate_up_proj") for name, _ in model.named_parameters())


def _is_of_directory(model: PreTrainedModel) -> bool:
    """Return True if transformers loaded the model's class from a model directory (trust_remote_code)."""
    return type(model).__module__.split(".")[0] == "transformers_modules"
