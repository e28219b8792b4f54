"""Removes peft's wrappers from parameter names."""

from __future__ import annotations

import re

# peft inserts `base_layer` into adapted layers' names (for experts, once for each adapted parameter),
# and `default` into adapters' names.
_LAYERS = re.compile(r"(?<=\.)base_layer\.(?=(?:base_layer\.)*[^.]+$)")
_DEFAULT = re.compile(r"(?<=\.lora_[AB]\.)default\.(?=weight$)")


def base_name(name: str) -> str:
    """Return a parameter's name without the parts that peft inserts.

    For a base model's parameter, this is the name in the model without peft; for an adapter, the name in
    peft's files.
    """
    return _DEFAULT.sub("", without_layers(name))


def without_layers(name: str) -> str:
    """Remove the parts `base_layer` from a parameter's name."""
    return _LAYERS.sub("", name)
