"""Access to a script's PeftModel: its settings, its adapters by name, and its base model.

The file also has the functions with which FastChat's train_lora.py gathers an adapter, for scripts that
import them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard, cast

from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Targets
from fastsft.model.generic.peft_names import without_layers
from fastsft.model.live_weights import raw_parameters

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
    from transformers import PreTrainedModel

ADAPTER = "default"
_WHERE = f"Trainer(model=PeftModel): peft_config[{ADAPTER!r}]"
_KINDS = ("PeftModel", "PeftModelForCausalLM")
_BASE = "base_model.model."
_COPY = f".modules_to_save.{ADAPTER}."
_ORIGINAL = ".original_module."


def is_peft_model(model: object) -> TypeGuard[PeftModel]:
    """Return True for peft's PeftModel, without importing peft."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def settings_of(model: PeftModel) -> LoraSettings:
    """Return a PeftModel's LoraConfig. ValueError unless it has one LoRA adapter and a known class."""
    kind = type(model)
    if kind.__name__ not in _KINDS or kind.__module__ != "peft.peft_model":
        raise ValueError(
            f"Trainer: model is a {kind.__qualname__}; expected what get_peft_model makes for CAUSAL_LM, a "
            "PeftModelForCausalLM"
        )
    names, active = list(model.peft_config), model.active_adapters
    if names != [ADAPTER] or active != [ADAPTER]:
        raise ValueError(
            f"Trainer: model has the adapters {', '.join(names)} with {', '.join(active) or 'none'} active; "
            f"expected one, {ADAPTER!r}: make a PeftModel with one adapter"
        )
    config = dict(model.peft_config[ADAPTER].to_dict())
    if config.get("base_model_name_or_path") is None:
        config["base_model_name_or_path"] = getattr(model.get_base_model(), "name_or_path", None)
    return LoraSettings.from_config(config, _WHERE)


def check_modules(model: PeftModel, settings: LoraSettings, targets: Targets) -> None:
    """Raise ValueError unless `model` has exactly the adapters and trained parameters in its settings.

    Merged, disabled or changed adapters are also errors.
    """
    layers = {engine_name(name): layer for name, layer in _layers(model)}
    adapters = {adapter.module: adapter for adapter in targets.adapters}
    if layers.keys() != adapters.keys():
        other = sorted(layers.keys() ^ adapters.keys())[0]
        raise ValueError(f"{_WHERE}: {other} has an adapter, or none, other than target_modules say")
    for name, layer in layers.items():
        _check_layer(name, layer, settings, adapters[name].rank, adapters[name].scale)
    shapes = targets.shapes()
    actual = {
        engine_name(name): tuple(parameter.shape)
        for name, parameter in raw_parameters(model)
        if parameter.requires_grad
    }
    for name in [*shapes, *actual]:
        if shapes.get(name) != actual.get(name):
            raise ValueError(
                f"Trainer: {name} of the PeftModel: expected {_trained(shapes.get(name))} by its LoraConfig, "
                f"got {_trained(actual.get(name))}; leave requires_grad as peft sets it, and load adapters "
                "with is_trainable=True"
            )


def _trained(shape: tuple[int, ...] | None) -> str:
    return "frozen" if shape is None else f"trained, {list(shape)}"


def _check_layer(name: str, layer: LoraLayer, settings: LoraSettings, rank: int, scale: float) -> None:
    kind = type(layer)
    dropout = getattr(layer.lora_dropout[ADAPTER], "p", 0.0)
    problems = {
        f"is a {kind.__module__}.{kind.__qualname__}": (kind.__module__, kind.__qualname__)
        != ("peft.tuners.lora.layer", "Linear"),
        "is merged": bool(layer.merged_adapters),
        "is disabled": bool(layer.disable_adapters),
        "has a variant": bool(layer.lora_variant),
        "has a forward of its own": "forward" in vars(layer),
        f"has rank {layer.r[ADAPTER]}": layer.r[ADAPTER] != rank,
        f"has scale {layer.scaling[ADAPTER]}": layer.scaling[ADAPTER] != scale,
        f"has dropout {dropout}": dropout != settings.lora_dropout,
    }
    for problem, there in problems.items():
        if there:
            raise ValueError(
                f"Trainer: {name} of the PeftModel {problem}; expected lora.Linear with rank {rank}, scale "
                f"{scale:g}, dropout {settings.lora_dropout:g} as its LoraConfig says"
            )


def engine_name(name: str) -> str:
    """Return the engine's name for a PeftModel's module or parameter.

    For modules in modules_to_save, this is the trained copy's name. The frozen original gets its own name,
    for which `is_replaced` returns True.
    """
    inside = without_layers(name.removeprefix(_BASE).replace(_COPY, "."))
    return inside.removesuffix(f".modules_to_save.{ADAPTER}").replace(f".{ADAPTER}.", ".")


def is_replaced(name: str) -> bool:
    """Return True for the frozen original of a module in modules_to_save.

    No forward pass uses the original.
    """
    return _ORIGINAL in name


def trained_values(model: PeftModel, targets: Targets) -> dict[str, torch.Tensor]:
    """Return float32 copies of all trained tensors, by the engine's names."""
    parameters = {engine_name(name): parameter for name, parameter in raw_parameters(model)}
    return {name: parameters[name].detach().cpu().float().clone() for name in targets.shapes()}


def write_values(model: PeftModel, values: Mapping[str, torch.Tensor]) -> None:
    """Write `values` into the parameters of `model`, rounded to their dtypes.

    values: tensors by the engine's names.
    """
    import torch

    parameters = {engine_name(name): parameter for name, parameter in raw_parameters(model)}
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


@contextmanager
def base_alone(model: PeftModel) -> Iterator[PreTrainedModel]:
    """Yield the base model without peft's wrappers. When the context ends, the wrappers are put back."""
    base = cast("PreTrainedModel", model.get_base_model())  # peft's annotation is nn.Module
    changed: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    frozen = [parameter for _, parameter in raw_parameters(base) if not parameter.requires_grad]
    for path, module in list(base.named_modules()):
        original = _original(module)
        if original is not None:
            parent, _, name = path.rpartition(".")
            holder = base.get_submodule(parent)
            changed.append((holder, name, module))
            holder._modules[name] = original
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield base
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for holder, name, module in changed:
            holder._modules[name] = module


def _original(module: object) -> torch.nn.Module | None:
    """Return the module that peft's `module` wraps; None for other modules."""
    original: torch.nn.Module | None = None
    if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
        original = module.base_layer
    elif hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
        original = module.original_module
    return original


def _layers(model: PeftModel) -> Iterator[tuple[str, LoraLayer]]:
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def maybe_zero_3(param: torch.Tensor) -> torch.Tensor:
    """Return a copy of a parameter on the CPU, gathered from all ranks if DeepSpeed's ZeRO 3 shards it."""
    if not hasattr(param, "ds_id"):
        return param.detach().cpu().clone()
    from deepspeed import zero  # type: ignore[import-not-found]

    with zero.GatheredParameters([param]):
        return param.data.detach().cpu().clone()


def get_peft_state_maybe_zero_3(
    named_params: Iterable[tuple[str, torch.Tensor]], bias: str
) -> dict[str, torch.Tensor]:
    """Return copies of a PeftModel's adapters.

    named_params: the model's named parameters. bias: "none"; "all", to include every bias; or "lora_only", to
    include the biases of adapted modules, for which FastChat's own function fails. NotImplementedError for
    other values.
    """
    if bias not in ("none", "all", "lora_only"):
        raise NotImplementedError(f"bias: expected none, all or lora_only, got {bias!r}")
    named = dict(named_params)
    kept = {name: value for name, value in named.items() if "lora_" in name}
    if bias == "all":
        kept = {name: value for name, value in named.items() if "lora_" in name or "bias" in name}
    elif bias == "lora_only":
        modules = {name.split("lora_")[0] for name in kept}
        biases = {f"{module}{part}" for module in modules for part in ("bias", "base_layer.bias")}
        kept |= {name: value for name, value in named.items() if name in biases}
    return {name: maybe_zero_3(value) for name, value in kept.items()}
