"""Names of parameters with peft's modules around them, and without."""

from __future__ import annotations

import re

# What peft puts into names: of a layer with adapters, once for each parameter of it that is adapted by itself
# (experts), and of the adapter named default.
_LAYERS = re.compile(r"(?<=\.)base_layer\.(?=(?:base_layer\.)*[^.]+$)")
_DEFAULT = re.compile(r"(?<=\.lora_[AB]\.)default\.(?=weight$)")


def base_name(name: str) -> str:
    """The name of a parameter as the model has it without peft's modules, and of adapters as its files do."""
    return _DEFAULT.sub("", without_layers(name))


def without_layers(name: str) -> str:
    """`name`, of a parameter of the model without `base_layer`; names of adapters stay as they are."""
    return _LAYERS.sub("", name)
