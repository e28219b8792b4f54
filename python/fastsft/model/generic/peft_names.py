"""Removes peft's wrappers from parameter names."""

from __future__ import annotations

import re

# peft inserts base_layer into adapted layers' names (for experts, once per adapted parameter), and default
# into adapters' names.
_LAYERS = re.compile(r"(?<=\.)base_layer\.(?=(?:base_layer\.)*[^.]+$)")
_DEFAULT = re.compile(r"(?<=\.lora_[AB]\.)default\.(?=weight$)")


def base_name(name: str) -> str:
    """Return a parameter's name in the model without peft, or an adapter's name in peft's files."""
    return _DEFAULT.sub("", without_layers(name))


def without_layers(name: str) -> str:
    """Remove `base_layer` from a parameter's name."""
    return _LAYERS.sub("", name)
