"""Divides a transformers model's parameters into units: one for each layer, and one for all others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastsft.model.generic.peft_names import base_name
from fastsft.model.generic.stored_tensors import FileTensor, stored_tensors
from fastsft.model.generic.unreached import Unreached

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


@dataclass
class ParameterInfo:
    """A parameter or a saved buffer.

    name: its first name in the model.
    decays: True if transformers' Trainer applies weight decay to it.
    is_reached: True if it gets gradients from text.
    is_adapter: True if it belongs to an adapter, so that the model's files do not have it.
    is_constant: True if it is in a trained unit, but never updated.
    buffer: the buffer's dtype; None for a parameter.
    owners: all pairs (module, attribute) that refer to it.
    stored: the tensors that hold it in the engine and in files.
    """

    name: str
    shape: tuple[int, ...]
    decays: bool
    is_trained: bool = True
    is_reached: bool = True
    is_adapter: bool = False
    is_constant: bool = False
    buffer: torch.dtype | None = None
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)
    stored: tuple[FileTensor, ...] = ()

    @property
    def numel(self) -> int:
        """The parameter's element count."""
        return math.prod(self.shape)

    @property
    def tensors(self) -> list[FileTensor]:
        """The tensors in `stored`, except fused tensors in which another parameter comes first.

        Thus each file tensor is listed with exactly one parameter, the first that it holds.
        """
        return [tensor for tensor in self.stored if not tensor.within]

    @property
    def is_decayed(self) -> bool:
        """True if weight decay changes the parameter. transformers skips parameters without gradients."""
        return self.decays and self.is_reached

    @property
    def is_embedding(self) -> bool:
        """True if an embedding module looks up rows in the parameter."""
        return any(isinstance(module, nn.Embedding) and short == "weight" for module, short in self.owners)


@dataclass
class Unit:
    """Parameters that are gathered together.

    block: the layer's module; None for unit 0. In the engine, the trained parameters are one unit, and the
    frozen parameters are another unit, which is never reduced.
    """

    name: str
    block: nn.Module | None
    parameters: list[ParameterInfo] = field(default_factory=list)

    def part(self, *, trained: bool) -> list[ParameterInfo]:
        """Return the trained parameters, or the frozen parameters."""
        return [info for info in self.parameters if info.is_trained == trained]


def make_units(model: PreTrainedModel, unreached: Unreached) -> list[Unit]:
    """Return unit 0, which has the parameters outside all layers, and a unit for each layer in model order.

    Tied weights and other parameters that several layers use are in unit 0, once. Saved buffers and
    parameters without requires_grad are constant, or frozen if the model has adapters.
    """
    blocks = _find_blocks(model)
    units = [Unit("outside", None), *(Unit(name, block) for name, block in blocks)]
    unit_of = {id(module): at for at, (_, block) in enumerate(blocks, 1) for module in block.modules()}
    decaying = decaying_names(model)
    has_adapters = any(".lora_" in name for name, _ in model.named_parameters())
    infos: dict[int, tuple[ParameterInfo, set[int]]] = {}
    for prefix, module in model.named_modules():
        for short, tensor in saved_tensors(module):
            raw = f"{prefix}.{short}" if prefix else short
            name = base_name(raw)
            is_constant = not tensor.requires_grad and not has_adapters
            new = ParameterInfo(
                name,
                tuple(tensor.shape),
                raw in decaying and not is_constant,
                tensor.requires_grad or is_constant,
                is_reached=not unreached.has(name),
                is_adapter=name != raw and ".lora_" in name,
                is_constant=is_constant,
                buffer=None if isinstance(tensor, nn.Parameter) else tensor.dtype,
            )
            info, numbers = infos.setdefault(id(tensor), (new, set()))
            info.owners.append((module, short))
            numbers.add(unit_of.get(id(module), 0))
    shapes = {info.name: info.shape for info, _ in infos.values() if not info.is_adapter}
    stored = stored_tensors(model, shapes)
    for info, numbers in infos.values():
        info.stored = stored.get(info.name, (FileTensor(info.name, info.shape),))
        units[numbers.pop() if len(numbers) == 1 else 0].parameters.append(info)
    _check_joined(units, type(model).__name__)
    return [unit for unit in units if unit.parameters or unit.block is None]


def _check_joined(units: list[Unit], kind: str) -> None:
    """Raise ValueError if a file tensor's parts would be trained in different ways."""
    seen: dict[str, tuple[object, ...]] = {}
    for unit in units:
        for info in unit.parameters:
            if info.stored and info.stored[0].within is not None:
                treatment = (unit.name, info.is_decayed, info.is_trained, info.is_constant)
                if seen.setdefault(info.stored[0].name, treatment) != treatment:
                    raise ValueError(
                        f"{kind}: {info.name} is a part of the tensor {info.stored[0].name}, whose other "
                        "parts are trained in another way; train this model with transformers' Trainer"
                    )


def saved_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the module's own parameters and saved floating-point buffers, by name, in state_dict order."""
    for short, parameter in module._parameters.items():
        if parameter is not None:
            yield short, parameter
    for short, buffer in module._buffers.items():
        if buffer is None or short in module._non_persistent_buffers_set:
            continue
        if buffer.is_floating_point():
            yield short, buffer


def decaying_names(model: PreTrainedModel) -> set[str]:
    """Return the parameter names with weight decay, by the rule of transformers' Trainer."""
    from transformers.trainer_pt_utils import get_parameter_names

    return set(get_parameter_names(model, [nn.LayerNorm], _NO_DECAY))


def _find_blocks(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """Return the layers, with their names.

    They are the outermost modules with a class in `_no_split_modules`. If there are none, they are the items
    in the ModuleList with the most parameters.
    """
    classes = set(getattr(model, "_no_split_modules", None) or ())
    blocks: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{other}.") for other, _ in blocks)
        if type(module).__name__ in classes and not is_inside:
            blocks.append((name, module))
    return blocks or _largest_list(model)


def _largest_list(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    def size(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        return []
    name, largest = max(lists, key=lambda entry: size(entry[1]))
    return [(f"{name}.{key}", block) for key, block in largest.named_children()]
