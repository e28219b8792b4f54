"""The places of a model's parameters on flat units."""

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
class Placed:
    """One parameter: its first name, and every module that has it under some name.

    decays: by the rule of transformers' Trainer. is_reached: passes give it gradients. is_adapter: it is in
    no file of the model. is_held: it is in files and units and keeps its values. buffer: the type of a buffer
    that is saved with the weights; None of a parameter. stored: the tensors of the files, and of the engine,
    that it consists of.
    """

    name: str
    shape: tuple[int, ...]
    decays: bool
    is_trained: bool = True
    is_reached: bool = True
    is_adapter: bool = False
    is_held: bool = False
    buffer: torch.dtype | None = None
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)
    stored: tuple[FileTensor, ...] = ()

    @property
    def numel(self) -> int:
        """Of its elements."""
        return math.prod(self.shape)

    @property
    def tensors(self) -> list[FileTensor]:
        """Those of `stored` that no parameter before it has described."""
        return [tensor for tensor in self.stored if not tensor.within]

    @property
    def is_decayed(self) -> bool:
        """Its weight decays; the Trainer leaves alone what gets no gradient."""
        return self.decays and self.is_reached

    @property
    def is_embedding(self) -> bool:
        """A module looks rows up in it."""
        return any(isinstance(module, nn.Embedding) and short == "weight" for module, short in self.owners)


@dataclass
class Unit:
    """Parameters that are gathered together. block: the module whose they are.

    Those that are trained are reduced and updated together; they are one unit of the engine, the others
    another one.
    """

    name: str
    block: nn.Module | None
    parameters: list[Placed] = field(default_factory=list)

    def part(self, *, trained: bool) -> list[Placed]:
        """The parameters that are trained, or those that are not."""
        return [one for one in self.parameters if one.is_trained == trained]


def place(model: PreTrainedModel, unreached: Unreached) -> list[Unit]:
    """Unit 0 has what belongs to no block; then one unit a block, in the order of the model.

    A parameter that two blocks share is in unit 0, and so are tied weights: one tensor, once. What needs no
    gradient, buffers that are saved among it, is held; next to adapters it is not trained.
    """
    blocks = _blocks(model)
    units = [Unit("outside", None), *(Unit(name, block) for name, block in blocks)]
    home = {id(module): at for at, (_, block) in enumerate(blocks, 1) for module in block.modules()}
    decaying = decaying_names(model)
    has_adapters = any(".lora_" in name for name, _ in model.named_parameters())
    placed: dict[int, tuple[Placed, set[int]]] = {}
    for prefix, module in model.named_modules():
        for short, tensor in saved_tensors(module):
            raw = f"{prefix}.{short}" if prefix else short
            name = base_name(raw)
            held = not tensor.requires_grad and not has_adapters
            new = Placed(
                name,
                tuple(tensor.shape),
                raw in decaying and not held,
                tensor.requires_grad or held,
                is_reached=not unreached.has(name),
                is_adapter=name != raw and ".lora_" in name,
                is_held=held,
                buffer=None if isinstance(tensor, nn.Parameter) else tensor.dtype,
            )
            one, homes = placed.setdefault(id(tensor), (new, set()))
            one.owners.append((module, short))
            homes.add(home.get(id(module), 0))
    own = {one.name: one.shape for one, _ in placed.values() if not one.is_adapter}
    stored = stored_tensors(model, own)
    for one, homes in placed.values():
        one.stored = stored.get(one.name, (FileTensor(one.name, one.shape),))
        units[homes.pop() if len(homes) == 1 else 0].parameters.append(one)
    _check_joined(units, type(model).__name__)
    return [unit for unit in units if unit.parameters or unit.block is None]


def _check_joined(units: list[Unit], kind: str) -> None:
    """ValueError for parameters that are one tensor of the files and not treated alike."""
    seen: dict[str, tuple[object, ...]] = {}
    for unit in units:
        for one in unit.parameters:
            if one.stored and one.stored[0].within is not None:
                own = (unit.name, one.is_decayed, one.is_trained, one.is_held)
                if seen.setdefault(one.stored[0].name, own) != own:
                    raise ValueError(
                        f"{kind}: {one.name} is a part of the tensor {one.stored[0].name}, whose other parts "
                        "are trained in another way; train this model with transformers' Trainer"
                    )


def saved_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's own parameters and floating-point buffers that are saved, by name, as in its state dict."""
    for short, parameter in module._parameters.items():
        if parameter is not None:
            yield short, parameter
    for short, buffer in module._buffers.items():
        if buffer is None or short in module._non_persistent_buffers_set:
            continue
        if buffer.is_floating_point():
            yield short, buffer


def decaying_names(model: PreTrainedModel) -> set[str]:
    """Parameters with weight decay, by the rule of transformers' Trainer."""
    from transformers.trainer_pt_utils import get_parameter_names

    return set(get_parameter_names(model, [nn.LayerNorm], _NO_DECAY))


def _blocks(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """Outermost modules of the classes that transformers never splits, else the largest list of modules."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{other}.") for other, _ in found)
        if type(module).__name__ in names and not inside:
            found.append((name, module))
    return found or _largest_list(model)


def _largest_list(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    def size(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        return []
    name, largest = max(lists, key=lambda entry: size(entry[1]))
    return [(f"{name}.{key}", block) for key, block in largest.named_children()]
