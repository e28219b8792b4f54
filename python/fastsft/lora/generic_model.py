"""GenericAdaptedModel: LoRA adapters in the generic engine, which are peft's own modules."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.modules import HEAD
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Adapter, Targets, joined_hint
from fastsft.model.generic.causal_lm import GenericCausalLM
from fastsft.model.generic.memory import ActivationSizes
from fastsft.model.generic.peft_names import base_name
from fastsft.model.generic.unreached import Unreached
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from peft.tuners.lora.layer import LoraLayer
    from transformers import PreTrainedModel

_NAME = "default"  # peft's name for the first adapter


class GenericAdaptedModel(AdaptedModel, GenericCausalLM):
    """An AdaptedModel in the generic engine, with the same arguments as AdaptedModel."""

    def __init__(self, model: GenericCausalLM, settings: LoraSettings, *args: Any, **kwargs: Any) -> None:
        self._base, self.settings = model, settings
        self.why_generic = model.why_generic
        super().__init__(model, settings, *args, **kwargs)

    def engine_config(self) -> dict[str, Any]:
        return self._base.engine_config()

    def _find_targets(self) -> Targets:
        targets = read_targets(self._meta.model, self.settings)
        _warn_of_unmatched(self.settings, targets)
        self.settings = _with_converted_targets(self._meta.model, self.settings)
        return targets

    def _convert(self, adapter: AdapterDirectory) -> None:
        convert_expert_adapters(adapter, self._base, self.targets)

    def _engine_adapters(self) -> None:
        """Return None, because the adapters are modules of the model."""

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        return with_peft(self._base._empty(dtype), self.settings)

    def _find_unreached(self, model: PreTrainedModel) -> Unreached:
        return self._base.unreached

    def _why_padded(self) -> str | None:
        return self._base.why_padded

    def activation_sizes(self, dtype: str) -> ActivationSizes:
        """Return the base model's sizes, with the adapted experts' weights added.

        peft adds the adapters to those weights in each pass, which needs memory for the sums.
        """
        summed = dict.fromkeys((unit.name for unit in self._meta.units[1:]), 0)
        for adapter in self.targets.adapters:
            for unit in summed:
                if adapter.parameter is not None and adapter.layer.startswith(f"{unit}."):
                    summed[unit] += math.prod(adapter.weight_shape())
        return replace(super().activation_sizes(dtype), summed=max(summed.values(), default=0))


def with_peft(model: PreTrainedModel, settings: LoraSettings) -> PreTrainedModel:
    """Wrap the modules of `model` that `settings` name with peft. The model is on the meta device.

    ValueError if peft is not installed, for settings that peft rejects, and for modules_to_save.
    """
    if settings.modules_to_save:
        raise ValueError(
            "lora_modules_to_save: expected none with the generic engine, which trains adapters and biases; "
            "leave it out"
        )
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(
            f"adapters of {type(model).__name__} are peft's modules: pip install peft ({error})"
        ) from error
    fields = {**settings.to_config(), "init_lora_weights": False, "inference_mode": False}
    fields.pop("peft_type")
    try:
        # The warnings are about transposed weights (Conv1D), which peft handles itself.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = get_peft_model(model, LoraConfig(**fields), low_cpu_mem_usage=True)
    except (ValueError, TypeError, KeyError) as error:
        if settings.lora_dropout and "lora_dropout" in str(error):
            raise ValueError(
                "lora_dropout: expected 0 with adapters of experts and routers, which peft makes without "
                f"dropout, got {settings.lora_dropout:g}; add --lora_dropout 0, or name linear layers: "
                f"{_adaptable(model)}"
            ) from error
        raise ValueError(
            f"LoRA: peft makes no such adapters of {type(model).__name__}: {str(error).splitlines()[0]} Its "
            f"linear layers are {', '.join(_linears(model))}; all-linear takes all but the head"
            f"{joined_hint(settings.target_modules)}"
        ) from error
    return cast("PreTrainedModel", wrapped.base_model.model)  # `model` itself, changed in place


def find_generic_targets(model: GenericCausalLM, adapter: AdapterDirectory) -> Targets:
    """Return the targets of `adapter` in `model`, and convert its tensors for the installed transformers."""
    settings = adapter.settings
    targets = read_targets(with_peft(model._empty(torch.float32), settings), settings)
    convert_expert_adapters(adapter, model, targets)
    return targets


def read_targets(model: torch.nn.Module, settings: LoraSettings) -> Targets:
    """Return the targets in a model that `with_peft` has wrapped.

    ValueError for adapters on embeddings or convolutions.
    """
    from peft.tuners.lora.layer import LoraLayer

    linears, parameters = [], dict[str, list[Adapter]]()
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        adapter = _adapter(model, name, layer)
        if adapter.parameter is None:
            linears.append(adapter)
        else:  # prepended, so that the innermost wrapper comes first, the order in which peft wraps
            parameters.setdefault(adapter.layer, []).insert(0, adapter)
    adapters = [*linears, *(adapter for nested in parameters.values() for adapter in nested)]
    trained = {
        base_name(name): tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and ".lora_" not in name
    }
    return Targets(tuple(adapters), trained, settings.lora_dropout)


def _adapter(model: torch.nn.Module, name: str, layer: LoraLayer) -> Adapter:
    """Describe the adapter in peft's `layer`. ValueError unless it adapts a linear layer or a parameter."""
    base = cast("torch.nn.Module", layer.get_base_layer())
    if problem := _why_not_trained(layer, base):
        raise ValueError(
            f"LoRA: the targets match {name} ({type(base).__name__}), {problem}; the generic engine has "
            f"adapters of linear layers and of experts: {_adaptable(model)}, or peft with transformers' "
            "Trainer for the others"
        )
    sizes = int(layer.in_features or 0), int(layer.out_features or 0)
    fields = name, layer.r[_NAME], layer.scaling[_NAME], *sizes
    if type(layer).__name__ == "Linear":
        return Adapter(*fields, is_transposed=bool(layer.fan_in_fan_out))
    shape = tuple(layer.get_param().shape)
    return Adapter(
        *fields,
        is_transposed=len(shape) == 3 and bool(getattr(base, "is_transposed", False)),
        parameter=layer.parameter_name,
        experts=shape[0] if len(shape) == 3 else None,
    )


def _why_not_trained(layer: LoraLayer, base: torch.nn.Module) -> str | None:
    """Return why the adapter in peft's `layer` around `base` cannot be trained; None if it can."""
    kind = type(layer).__name__
    if kind not in ("Linear", "ParamWrapper") or isinstance(base, torch.nn.Embedding):
        return "whose weights are no linear layer"
    if kind == "ParamWrapper" and any(list(child.parameters()) for child in base.children()):
        return f"which holds other layers next to its {layer.parameter_name}"
    if kind == "Linear" and not _gives_tensor(base):
        return "which gives several values, and peft's adapter of a linear layer takes one tensor"
    return None


def _gives_tensor(linear: torch.nn.Module) -> bool:
    """Return True if the layer returns one tensor.

    Some routers are linear layers, but return weights and expert indices.
    """
    if type(linear).forward is torch.nn.Linear.forward or not isinstance(linear, torch.nn.Linear):
        return True
    try:
        with torch.no_grad():
            output = linear(torch.empty(1, 1, linear.in_features, device=linear.weight.device))
    except (RuntimeError, ValueError, TypeError, NotImplementedError):  # no forward pass on the meta device
        return True
    return isinstance(output, torch.Tensor)


def _warn_of_unmatched(settings: LoraSettings, targets: Targets) -> None:
    """Warn of target parameters that match nothing, because peft ignores them silently."""
    weights = [f".{adapter.weight}" for adapter in targets.adapters]
    for name in settings.target_parameters or ():
        if not any(weight.endswith(f".{name}") for weight in weights):
            warn_once(f"LoRA: the target parameter {name} matches nothing")


def _with_converted_targets(model: torch.nn.Module, settings: LoraSettings) -> LoraSettings:
    """Return `settings` with targets, ranks and alphas as peft converts them for transformers 5's experts."""
    config = cast("Any", model).peft_config[_NAME]
    if not getattr(config, "target_parameters", None):
        return settings
    modules = config.target_modules
    return replace(
        settings,
        target_modules=modules if isinstance(modules, str) else tuple(sorted(modules or ())),
        target_parameters=tuple(sorted(config.target_parameters)),
        rank_pattern=dict(config.rank_pattern),
        alpha_pattern=dict(config.alpha_pattern),
    )


def _adaptable(model: torch.nn.Module) -> str:
    """Return the flag that targets all linear layers except the head."""
    return f"--lora_target_modules {' '.join(name for name in _linears(model) if name != HEAD)}"


def _linears(model: torch.nn.Module) -> list[str]:
    """Return the last parts of the linear layers' names, without duplicates and without peft's wrappers."""
    endings: dict[str, None] = {}
    for name, module in model.named_modules():
        is_linear = isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
        if is_linear and ".lora_" not in name and _gives_tensor(module):
            endings[name.removesuffix(".base_layer").rpartition(".")[2]] = None
    return list(endings)


def convert_expert_adapters(adapter: AdapterDirectory, model: GenericCausalLM, targets: Targets) -> None:
    """Join an adapter's tensors per expert (as in transformers 4) into one for all experts (transformers 5).

    peft joins them in the same way when it loads an adapter (set_peft_model_state_dict). Do nothing if the
    tensors are joined already or cannot be joined; AdapterDirectory.check reports separate tensors.
    """
    joined = [name for target in targets.adapters if target.experts for name in target.shapes()]
    if all(name in adapter.shapes for name in joined):
        return
    try:
        from peft import LoraConfig
        from peft.utils.transformers_weight_conversion import (
            convert_peft_adapter_state_dict_for_transformers as convert,
        )
    except ImportError:  # transformers 4
        return
    try:
        tensors = convert(model._empty(torch.float32), LoraConfig(), adapter.tensors())
    except (ValueError, RuntimeError, KeyError):  # AdapterDirectory.check raises the error
        return
    adapter.replace(tensors)
