"""The model of a Trainer: one that is given, or one with the adapters of a LoraConfig (`peft_config`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.given_model import GivenPeftModel
from fastsft.lora.opening import adapted_kind, over_base
from fastsft.lora.peft_modules import is_peft_model
from fastsft.lora.settings import LoraSettings
from fastsft.model.causal_lm import CausalLM
from fastsft.model.choice import as_model

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel


def as_trained_model(
    model: object, peft_config: object = None, seed: int = 42, engine: str = "auto"
) -> CausalLM:
    """Wrap `model` for training.

    model: a PeftModel, with its adapters; a LoraConfig, with the base model that it names; others as
    `as_model`. peft_config: a LoraConfig, of the adapters that `model` gets: peft itself wraps a model of
    transformers; those of a directory are drawn from `seed`. engine: --engine; models of transformers with
    adapters are the native one's. ValueError for both at once, and for a LoraConfig that fastsft does not
    compute.
    """
    if _is_config(model):
        return _of_config_alone(model, peft_config, seed, engine)
    if peft_config is None and is_peft_model(model):
        _check_engine_of_objects(engine)
        return GivenPeftModel(model)
    if peft_config is None:
        made: CausalLM = as_model(model, engine)
        return made
    if not _is_config(peft_config):
        raise ValueError(
            f"Trainer(peft_config=): expected peft's LoraConfig, got {type(peft_config).__name__}"
        )
    if is_peft_model(model) or isinstance(model, AdaptedModel):
        raise ValueError(
            "Trainer(peft_config=): the model has adapters already; give the model alone, or its base model "
            "with peft_config"
        )
    settings = _settings(peft_config, "Trainer(peft_config=)")
    if _is_of_transformers(model):
        from peft import get_peft_model

        _check_engine_of_objects(engine)
        return GivenPeftModel(get_peft_model(model, peft_config))
    return _with_adapters(as_model(model, engine), settings, seed, model)


def _is_of_transformers(model: object) -> TypeGuard[PreTrainedModel]:
    """True for a module; fastsft's models have parameters too, and build an engine."""
    return hasattr(model, "named_parameters") and not hasattr(model, "build")


def _check_engine_of_objects(engine: str) -> None:
    """ValueError for --engine generic."""
    if engine == "generic":
        raise ValueError(
            "--engine generic: expected auto or native with a model of transformers that has adapters; save "
            "the base model, and give its directory with peft_config"
        )


def _is_config(value: object) -> TypeGuard[PeftConfig]:
    """True for an object of peft's own configuration classes; imports nothing."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(value, peft.PeftConfig)


def _settings(config: PeftConfig, where: str) -> LoraSettings:
    return LoraSettings.from_config(config.to_dict(), where)


def _of_config_alone(config: PeftConfig, peft_config: object, seed: int, engine: str) -> AdaptedModel:
    settings = _settings(config, "Trainer(model=LoraConfig)")
    if peft_config is not None or settings.base_model is None:
        got = "peft_config as well" if peft_config is not None else "none"
        raise ValueError(
            "Trainer(model=LoraConfig): expected the base model in its base_model_name_or_path, got "
            f"{got}; give Trainer(model=<directory or model>, peft_config=LoraConfig(...))"
        )
    return _with_adapters(as_model(settings.base_model, engine), settings, seed, settings.base_model)


def _with_adapters(model: object, settings: LoraSettings, seed: int, given: object) -> AdaptedModel:
    """given: what the script named `model` by."""
    if not isinstance(model, CausalLM) or model.engine is not None:
        raise ValueError(
            "Trainer(peft_config=): expected a model that no Trainer has trained yet: a directory, a "
            f"fastsft.CausalLM or a model of transformers, got {type(model).__name__}"
        )
    name = given if isinstance(given, str) else str(model.source_directory)
    settings = over_base(settings, name, "Trainer(peft_config=): the adapter of a LoraConfig for")
    return adapted_kind(model)(model, settings, seed=seed)
