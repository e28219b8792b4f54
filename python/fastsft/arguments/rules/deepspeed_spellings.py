"""A DeepSpeed file in one spelling: old and second names, "auto" inside ZeRO, sections that are switched off.

Sources: DeepSpeed's runtime/config.py and zero/config.py (aliases, deprecated fields, "auto" counts as left
out), and what accelerate's DeepSpeedPlugin fills in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# Second name of a ZeRO setting -> the name that files mostly have.
_ALIASES = {
    **{
        name: f"stage3_{name}"
        for name in (
            "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
            "max_live_parameters", "max_reuse_distance", "gather_16bit_weights_on_model_save",
            "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential",
        )
    },
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "cpu_offload_param": "cpu_offload_params",
}  # fmt: skip
# What accelerate puts for "auto": its variable, and the value without it.
_FILLED = {
    "stage": ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"),
    "stage3_gather_16bit_weights_on_model_save": ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false"),
    "offload_optimizer": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"),
    "offload_param": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"),
}
_SWITCHED = {
    "autotuning", "comet", "csv_monitor", "curriculum_learning", "data_efficiency",
    "eigenvalue", "elasticity", "flops_profiler", "hybrid_engine", "progressive_layer_drop",
    "quantize_training", "tensorboard", "torch_autocast", "wandb",
}  # fmt: skip


def one_spelling(config: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`config` with the usual names; what is None, "auto" without a rule, or switched off is left out.

    ValueError for two spellings of one setting with different values.
    """
    plain = {
        name: section
        for name, section in config.items()
        if section is not None and not (name in _SWITCHED and _is_off(section))
    }
    bf16 = plain.pop("bfloat16", None)
    if bf16 is not None:
        plain.setdefault("bf16", bf16)
    if isinstance(plain.get("zero_optimization"), bool):  # the form of its first releases
        plain["zero_optimization"] = {"stage": int(plain["zero_optimization"])}
    if isinstance(plain.get("zero_optimization"), dict):
        plain["zero_optimization"] = _zero(plain["zero_optimization"], environ)
    return plain


def _is_off(section: object) -> bool:
    return isinstance(section, dict) and section.get("enabled") is False


def _zero(given: dict[str, Any], environ: Mapping[str, str] | None) -> dict[str, Any]:
    env = os.environ if environ is None else environ
    settings: dict[str, Any] = {}
    for name, value in given.items():
        key = _ALIASES.get(name, name)
        if key in settings and settings[key] != value:
            raise ValueError(
                f"--deepspeed: zero_optimization.{name} is {value}, and its other spelling, "
                f"zero_optimization.{key}, is {settings[key]}; give one of them"
            )
        settings[key] = value
    filled = {name: _filled(name, value, env) for name, value in settings.items()}
    return {name: value for name, value in filled.items() if value not in (None, "auto")}


def _filled(name: str, value: object, env: Mapping[str, str]) -> object:
    variable, default = _FILLED.get(name, ("", ""))
    if isinstance(value, dict):
        device = env.get(variable, default) if value.get("device") == "auto" else value.get("device", "none")
        return {**value, "device": device} if name.startswith("offload_") else value
    if value != "auto" or not variable or name.startswith("offload_"):
        return value
    word = env.get(variable, default)
    return int(word) if name == "stage" else word.lower() == "true"
