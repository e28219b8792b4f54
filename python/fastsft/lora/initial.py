"""The values that adapters begin with: the draws of peft, from a seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fastsft.lora.targets import Adapter, Targets

if TYPE_CHECKING:
    import torch


def initial_values(
    targets: Targets, seed: int, init_lora_weights: bool | str = True
) -> dict[str, torch.Tensor]:
    """A and B of every adapter by the engine's names, float32.

    They are those that peft's get_peft_model draws after `torch.manual_seed(seed)`: for each adapter,
    in the order of the modules, the two that nn.Linear makes for itself, then A again
    (kaiming_uniform with a = sqrt(5); with gaussian, normal with deviation 1 / r), and B is zero. False
    leaves what nn.Linear made. Source: peft.tuners.lora.layer, update_layer and reset_lora_parameters.
    """
    import torch

    values: dict[str, torch.Tensor] = {}
    with torch.random.fork_rng(devices=[]):  # the state of the process stays
        torch.default_generator.manual_seed(seed)
        for adapter in targets.adapters:
            drawn = _draw(adapter, init_lora_weights)
            values.update(zip(adapter.shapes(), drawn, strict=True))
    return values


def _draw(adapter: Adapter, init_lora_weights: bool | str) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    a, b = (torch.empty(shape, dtype=torch.float32) for shape in adapter.shapes().values())
    torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    torch.nn.init.kaiming_uniform_(b, a=math.sqrt(5))
    if init_lora_weights == "gaussian":
        torch.nn.init.normal_(a, std=1 / adapter.rank)
    elif init_lora_weights:
        torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    if init_lora_weights:
        torch.nn.init.zeros_(b)
    return a, b
