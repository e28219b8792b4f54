"""The LoRA settings that the flags ask for."""

from __future__ import annotations

import re
from typing import Any

from fastsft.arguments.given import was_given
from fastsft.arguments.lora import LoraArguments
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import ALL_LINEAR

_EXPRESSION = re.compile(r"[\\^$*+?()\[\]{}|]")
# Flag of a run -> field of LoraSettings.
_FIELDS = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_bias": "bias",
    "lora_rslora": "use_rslora",
    "lora_modules_to_save": "modules_to_save",
}


def requested_settings(args: LoraArguments, base_model: str | None) -> LoraSettings:
    """As FastChat's train_lora.py makes its LoraConfig. base_model: the name that is written for readers.

    ValueError, naming the flag, for values that none can be.
    """
    values: dict[str, Any] = {field: _plain(getattr(args, flag)) for flag, field in _FIELDS.items()}
    try:
        return LoraSettings(**values, base_model=base_model)
    except ValueError as error:
        flags = {field: flag for flag, field in _FIELDS.items()}
        name, colon, rest = str(error).partition(":")
        raise ValueError(f"--{flags.get(name, name)}{colon}{rest}") from None


def check_same_settings(args: LoraArguments, found: LoraSettings) -> None:
    """ValueError for a flag that was given, and other than in the adapter of --lora_weight_path."""
    asked = requested_settings(args, None)
    for flag, field in _FIELDS.items():
        wanted, there = getattr(asked, field), getattr(found, field)
        if was_given(args, flag) and _as_set(wanted) != _as_set(there):
            raise ValueError(
                f"--{flag}: expected {_shown(there)} as in the adapter of --lora_weight_path "
                f"{args.lora_weight_path}, got {_shown(wanted)}; leave the flag out"
            )


def _plain(value: object) -> object:
    """A list as the settings have it: none, one expression, or names."""
    if not isinstance(value, list):
        return value
    if len(value) == 1 and (value[0].lower() == ALL_LINEAR or _EXPRESSION.search(value[0])):
        return value[0]
    return tuple(value) or None


def _as_set(value: object) -> object:
    return frozenset(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
