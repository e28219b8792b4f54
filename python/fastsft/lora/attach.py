"""Attaches LoRA adapters to a model: by flags, from a saved adapter, from a LoraConfig or in a PeftModel.

AdaptedModel trains adapters in the native engine. GenericAdaptedModel trains peft's modules in the generic
engine. GivenPeftModel trains a script's own PeftModel.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from fastsft.arguments.given import was_given
from fastsft.arguments.lora import LoraArguments
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.given_model import GivenPeftModel
from fastsft.lora.peft_modules import is_peft_model
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import ALL_LINEAR, Targets, names_experts, resolve
from fastsft.model import engine_choice
from fastsft.model.causal_lm import CausalLM
from fastsft.model.engine_choice import as_model, with_adaptable_experts
from fastsft.model.native_support import is_mixture
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel

_EXPRESSION = re.compile(r"[\\^$*+?()\[\]{}|]")
# Flags, and the LoraSettings fields that they set.
_FIELDS = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_bias": "bias",
    "lora_rslora": "use_rslora",
    "lora_modules_to_save": "modules_to_save",
}


def open_model(
    name: str,
    lora: LoraArguments,
    cache_dir: str | None,
    seed: int,
    engine: str = "auto",
    *,
    trust_remote_code: bool = False,
) -> CausalLM:
    """Open a directory or a hub model, and attach adapters by the flags.

    seed: initializes new adapters; in FastChat, the script's own torch seed does. engine: the --engine value.
    ValueError as in engine_choice.open_model and with_adapters.
    """
    opened = engine_choice.open_model(
        name, cache_dir=cache_dir, engine=engine, trust_remote_code=trust_remote_code
    )
    return with_adapters(opened, name, lora, seed)


def with_adapters(model: CausalLM, name: str, lora: LoraArguments, seed: int = 42) -> CausalLM:
    """Attach adapters to `model` by the flags. ValueError for wrong flags.

    name: the directory or hub name from which the model was opened.
    """
    if not lora.lora:
        return model
    adapter = AdapterDirectory(lora.lora_weight_path) if lora.lora_weight_path else None
    settings = adapter.settings if adapter else requested_settings(lora, name)
    if adapter:
        check_same_settings(lora, settings)
        settings = over_base(settings, name, f"the adapter {adapter.directory} was trained on")
    model = in_engine_of(model, settings)
    kind = adapted_kind(model)
    if lora.q_lora and model.engine_kind == "generic":
        _refuse_four_bits(model)
    if adapter:
        return kind.from_adapter(model, adapter, settings, four_bits=lora.q_lora)
    return kind(model, settings, seed=seed, four_bits=lora.q_lora)


def _refuse_four_bits(model: CausalLM) -> NoReturn:
    from fastsft import _C

    families = ", ".join(_C.model_families().values())
    without = "; of a mixture, name attention alone (--lora_target_modules q_proj k_proj v_proj o_proj)"
    raise ValueError(
        f"--q_lora True: expected a model of the native engine ({families}), got one of the generic "
        f"engine ({getattr(model, 'engine_words', '')}); leave it out, add --bf16 True"
        f"{without if is_mixture(model.config) else ''}"
    )


def in_engine_of(model: CausalLM, settings: LoraSettings) -> CausalLM:
    """Return `model` in the engine that has the adapters of `settings`.

    ValueError for experts' adapters with --engine native, and with an object of transformers.
    """
    is_native_mixture = model.engine_kind == "native" and is_mixture(model.config)
    if is_native_mixture and names_experts(settings, model.engine_config()):
        return with_adaptable_experts(model)
    return model


def over_base(settings: LoraSettings, name: str, about: str) -> LoraSettings:
    """Return `settings` with `name` as base model.

    If `settings` names another base model, print a notice that begins with `about`.
    """
    if settings.base_model is not None and not _is_same_model(settings.base_model, name):
        tell(f"{about} {settings.base_model}, and goes on over {name}")
    return settings.of_base(name)


def _is_same_model(one: str, other: str) -> bool:
    """Return True if both names are equal, or name one directory."""
    first, second = Path(one).expanduser(), Path(other).expanduser()
    return one == other or (first.is_dir() and second.is_dir() and first.samefile(second))


def find_targets(model: CausalLM, adapter: AdapterDirectory) -> Targets:
    """Return a saved adapter's targets in the base model `model`.

    ValueError if the adapter's settings match no module, or if its tensors do not fit these targets.
    """
    targets = _targets(model, adapter)
    adapter.check(targets)
    return targets


def _targets(model: CausalLM, adapter: AdapterDirectory) -> Targets:
    model = in_engine_of(model, adapter.settings)
    if model.engine_kind == "native":
        return resolve(adapter.settings, model.engine_config())
    from fastsft.lora.generic_model import find_generic_targets
    from fastsft.model.generic.causal_lm import GenericCausalLM

    assert isinstance(model, GenericCausalLM)
    return find_generic_targets(model, adapter)


def adapted_kind(model: CausalLM) -> type[AdaptedModel]:
    """Return the class that trains adapters on `model` in the model's engine."""
    if model.engine_kind == "native":
        return AdaptedModel
    from fastsft.lora.generic_model import GenericAdaptedModel

    return GenericAdaptedModel


def requested_settings(args: LoraArguments, base_model: str | None) -> LoraSettings:
    """Convert the LoRA flags to settings, as FastChat's train_lora.py makes its LoraConfig.

    base_model: the base model's name, recorded for people who read the file. ValueError, naming the flag, for
    wrong values.
    """
    values: dict[str, Any] = {field: _setting(getattr(args, flag)) for flag, field in _FIELDS.items()}
    try:
        return LoraSettings(**values, base_model=base_model)
    except ValueError as error:
        flags = {field: flag for flag, field in _FIELDS.items()}
        name, colon, rest = str(error).partition(":")
        raise ValueError(f"--{flags.get(name, name)}{colon}{rest}") from None


def check_same_settings(args: LoraArguments, saved: LoraSettings) -> None:
    """Raise ValueError if a flag on the command line contradicts the adapter of --lora_weight_path."""
    settings = requested_settings(args, None)
    for flag, field in _FIELDS.items():
        requested, expected = getattr(settings, field), getattr(saved, field)
        if was_given(args, flag) and _as_set(requested) != _as_set(expected):
            raise ValueError(
                f"--{flag}: expected {_shown(expected)} as in the adapter of --lora_weight_path "
                f"{args.lora_weight_path}, got {_shown(requested)}; leave the flag out"
            )


def _setting(value: object) -> object:
    """Convert a flag's list to a setting: None, a regular expression, or names."""
    if not isinstance(value, list):
        return value
    if len(value) == 1 and (value[0].lower() == ALL_LINEAR or _EXPRESSION.search(value[0])):
        return value[0]
    return tuple(value) or None


def _as_set(value: object) -> object:
    return frozenset(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def as_trained_model(
    model: object, peft_config: object = None, seed: int = 42, engine: str = "auto"
) -> CausalLM:
    """Wrap a Trainer's `model` argument for training.

    model: a PeftModel, whose adapters are trained; a LoraConfig, whose base model is opened; or anything that
    `as_model` accepts.
    peft_config: a LoraConfig for new adapters. On a transformers object, peft makes and initializes the
    adapters. On a directory, they are initialized from `seed`.
    engine: the --engine value; a transformers object with adapters needs the native engine.

    ValueError if both arguments bring adapters, and for a LoraConfig that fastsft does not compute.
    """
    if _is_config(model):
        return _from_config(model, peft_config, seed, engine)
    if peft_config is None and is_peft_model(model):
        _check_engine_of_objects(engine)
        return GivenPeftModel(model)
    if peft_config is None:
        return as_model(model, engine)
    if not _is_config(peft_config):
        raise ValueError(
            f"Trainer(peft_config=): expected peft's LoraConfig, got {type(peft_config).__name__}; "
            'write LoraConfig(r=8, task_type="CAUSAL_LM")'
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
    """Return True for a transformers module, which has no `build` method, unlike fastsft's models."""
    return hasattr(model, "named_parameters") and not hasattr(model, "build")


def _check_engine_of_objects(engine: str) -> None:
    """Raise ValueError for --engine generic, which cannot train adapters on transformers objects."""
    if engine == "generic":
        raise ValueError(
            "--engine generic: expected auto or native with a model of transformers that has adapters; save "
            "the base model, and give its directory with peft_config"
        )


def _is_config(value: object) -> TypeGuard[PeftConfig]:
    """Return True for peft's PeftConfig, without importing peft."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(value, peft.PeftConfig)


def _settings(config: PeftConfig, where: str) -> LoraSettings:
    return LoraSettings.from_config(config.to_dict(), where)


def _from_config(config: PeftConfig, peft_config: object, seed: int, engine: str) -> AdaptedModel:
    settings = _settings(config, "Trainer(model=LoraConfig)")
    if peft_config is not None or settings.base_model is None:
        got = "peft_config as well" if peft_config is not None else "none"
        raise ValueError(
            "Trainer(model=LoraConfig): expected the base model in its base_model_name_or_path, got "
            f"{got}; give Trainer(model=<directory or model>, peft_config=LoraConfig(...))"
        )
    return _with_adapters(as_model(settings.base_model, engine), settings, seed, settings.base_model)


def _with_adapters(model: object, settings: LoraSettings, seed: int, given: object) -> AdaptedModel:
    """Attach new adapters to `model`.

    given: the script's argument from which `model` was opened: a name or an object.
    """
    if not isinstance(model, CausalLM) or model.engine is not None:
        raise ValueError(
            "Trainer(peft_config=): expected a model that no Trainer has trained yet: a directory, a "
            f"fastsft.CausalLM or a model of transformers, got {type(model).__name__}"
        )
    model = in_engine_of(model, settings)
    name = given if isinstance(given, str) else str(model.source_directory)
    settings = over_base(settings, name, "Trainer(peft_config=): the adapter of a LoraConfig for")
    return adapted_kind(model)(model, settings, seed=seed)
