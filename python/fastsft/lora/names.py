"""Names of trained tensors: the engine's, which are those of the base model, and those of peft's files."""

from __future__ import annotations

from fastsft.lora.targets import Targets
from fastsft.model.generic.peft_names import without_layers

PREFIX = "base_model.model."
_ADAPTER_PARTS = (".lora_A.weight", ".lora_B.weight")


def name_in_file(name: str, targets: Targets) -> str:
    """`model...q_proj.lora_A.weight` as `base_model.model.model...q_proj.lora_A.weight`.

    peft keeps what a module with an adapter had of its own in its base_layer, one in another for each.
    """
    module, _, parameter = name.rpartition(".")
    layers = sum(module == adapter.layer for adapter in targets.adapters)
    return f"{PREFIX}{module}{'.base_layer' * layers}.{parameter}"


def name_in_engine(name: str) -> str | None:
    """The other way; None for a name that peft's files do not have."""
    if not name.startswith(PREFIX):
        return None
    return without_layers(name.removeprefix(PREFIX))


def is_adapter(name: str) -> bool:
    """True for A or B of an adapter, False for a parameter of the base model."""
    return name.endswith(_ADAPTER_PARTS)
