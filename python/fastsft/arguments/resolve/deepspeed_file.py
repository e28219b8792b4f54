"""Reads a DeepSpeed file's content: resolves alternative names, and rejects unsupported keys.

The source is DeepSpeed's runtime/config.py and zero/config.py (aliases, deprecated fields, "auto" as a
missing value), and the values that accelerate's DeepSpeedPlugin fills in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastsft.runtime.messages import warn_once
from fastsft.runtime.near_names import nearest

_READ = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "optimizer", "scheduler", "fp16", "bf16", "amp", "zero_optimization", "data_types",
}  # fmt: skip
# Sections about speed, memory and printing, which do not change the results.
_NO_EFFECT = {
    "steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "comms_logger",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients", "sparse_gradients",
    "gradient_predivide_factor", "flops_profiler", "activation_checkpointing", "aio", "checkpoint",
    "communication_data_type", "disable_allgather", "use_data_before_expert_parallelism",
    "seq_parallel_communication_data_type", "dataloader_drop_last", "fp32_allreduce", "allgather_size",
    "graph_harvesting", "tensorboard", "wandb", "csv_monitor", "comet",
}  # fmt: skip
_ZERO_READ = {
    "stage", "offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_params",
    "stage3_gather_16bit_weights_on_model_save",
}  # fmt: skip
_ZERO_NO_EFFECT = {
    "reduce_scatter", "reduce_bucket_size", "allgather_partitions", "allgather_bucket_size", "overlap_comm",
    "contiguous_gradients", "load_from_fp32_weights", "elastic_checkpoint", "sub_group_size",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_model_persistence_threshold", "round_robin_gradients",
    "stage3_use_all_reduce_for_fetch_params", "ignore_unused_parameters", "memory_efficient_linear",
    "use_multi_rank_bucket_allreduce", "cpu_offload_use_pin_memory", "legacy_stage1",
    "stage3_module_granularity_threshold", "stage3_allgather_sequential", "pipeline_loading_checkpoint",
    "override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks", "leaf_module",
}  # fmt: skip
# setting that changes the results -> its value without effect
_ZERO_NEUTRAL = {
    "zero_quantized_weights": False, "zero_quantized_gradients": False,
    "zero_quantized_nontrainable_weights": False, "zero_hpz_partition_size": 1, "mics_shard_size": -1,
    "mics_hierarchical_params_gather": False,
}  # fmt: skip
# Settings of the loss scaler. Some files have them in the section bf16, in which DeepSpeed ignores them.
_LOSS_SCALER = {
    "auto_cast", "loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis",
    "consecutive_hysteresis", "min_loss_scale",
}  # fmt: skip
_BF16_FLAGS = {
    "bf16_master_weights_and_grads": "leave it out, or use --master_dtype split and --grad_dtype bfloat16",
    "bf16_optimizer_states": "use --optim_dtype bfloat16",
}
_BF16 = {"enabled", "immediate_grad_update", "check_grad_overflow", *_LOSS_SCALER, *_BF16_FLAGS}
_ADAM = ("adam", "adamw")
# Default values of DeepSpeed's FusedAdam.
OPTIMIZER_DEFAULTS = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
_OPTIMIZER_NEUTRAL = {
    "adam_w_mode": True, "torch_adam": None, "bias_correction": True, "amsgrad": False, "fused": None,
}  # fmt: skip
_SCHEDULERS = {
    "WarmupLR": {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"},
    "WarmupDecayLR": {
        "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps",
    },
}  # fmt: skip
# other name of a ZeRO setting -> its usual name
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
# ZeRO setting -> the environment variable from which accelerate resolves "auto", and the variable's default
_AUTO = {
    "stage": ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"),
    "stage3_gather_16bit_weights_on_model_save": ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false"),
    "offload_optimizer": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"),
    "offload_param": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"),
}
# Sections that a file can switch off with `"enabled": false`.
_SWITCHED = {
    "autotuning", "comet", "csv_monitor", "curriculum_learning", "data_efficiency",
    "eigenvalue", "elasticity", "flops_profiler", "hybrid_engine", "progressive_layer_drop",
    "quantize_training", "tensorboard", "torch_autocast", "wandb",
}  # fmt: skip


_SECTIONS = {
    "zero_optimization": '{"stage": 2}', "bf16": '{"enabled": "auto"}', "fp16": '{"enabled": "auto"}',
    "amp": '{"enabled": false}', "optimizer": '{"type": "AdamW"}', "scheduler": '{"type": "WarmupLR"}',
    "data_types": '{"grad_accum_dtype": "fp32"}',
}  # fmt: skip


def one_spelling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with the usual names of settings.

    A setting is dropped if it is None, switched off, or "auto" without a rule that resolves "auto".
    ValueError if two names of one setting have different values.
    """
    plain = {
        name: section
        for name, section in config.items()
        if section is not None and not (name in _SWITCHED and _is_off(section))
    }
    bf16 = plain.pop("bfloat16", None)
    if bf16 is not None:
        plain.setdefault("bf16", bf16)
    if isinstance(plain.get("zero_optimization"), bool):  # the first DeepSpeed releases had a boolean here
        plain["zero_optimization"] = {"stage": int(plain["zero_optimization"])}
    if isinstance(plain.get("zero_optimization"), dict):
        plain["zero_optimization"] = _zero_settings(plain["zero_optimization"])
    for name, form in _SECTIONS.items():
        if not isinstance(plain.get(name, {}), dict):
            raise ValueError(
                f"--deepspeed: {name}: expected an object, as in {form}, got {plain[name]!r:.60}; write "
                "one, or leave it out"
            )
    return plain


def _is_off(section: object) -> bool:
    return isinstance(section, dict) and section.get("enabled") is False


def _zero_settings(given: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in given.items():
        key = _ALIASES.get(name, name)
        if key in settings and settings[key] != value:
            raise ValueError(
                f"--deepspeed: zero_optimization.{name} is {value}, and its other spelling, "
                f"zero_optimization.{key}, is {settings[key]}; give one of them"
            )
        settings[key] = value
    resolved = {name: _resolve_auto(name, value) for name, value in settings.items()}
    return {name: value for name, value in resolved.items() if value not in (None, "auto")}


def _resolve_auto(name: str, value: object) -> object:
    variable, default = _AUTO.get(name, ("", ""))
    if isinstance(value, dict):
        device = value.get("device", "none")
        device = os.environ.get(variable, default) if device == "auto" else device
        return {**value, "device": device} if name.startswith("offload_") else value
    if value != "auto" or not variable or name.startswith("offload_"):
        return value
    word = os.environ.get(variable, default)
    return int(word) if name == "stage" else word.lower() == "true"


def check_known(config: dict[str, Any]) -> None:
    """Raise ValueError for unsupported sections and ZeRO settings; warn of keys without effect."""
    unknown = sorted(set(config) - _READ - _NO_EFFECT)
    if unknown:
        near = nearest(unknown[0], _READ | _NO_EFFECT)
        raise _unsupported(f"section {', '.join(unknown)}", f"write {near}" if near else "leave it out")
    zero = config.get("zero_optimization", {})
    for key, value in zero.items():
        if key in _ZERO_NEUTRAL and value == _ZERO_NEUTRAL[key]:
            continue
        if key not in _ZERO_READ | _ZERO_NO_EFFECT:
            near = nearest(key, _ZERO_READ | _ZERO_NO_EFFECT)
            raise _unsupported(f"zero_optimization.{key}", f"write {near}" if near else "leave it out")
    idle = sorted(
        {*set(config) & _NO_EFFECT, *(f"zero_optimization.{k}" for k in set(zero) & _ZERO_NO_EFFECT)}
    )
    if idle:
        warn_once(f"--deepspeed: no effect here, the engine plans its own buckets: {', '.join(idle)}")


def check_formats(config: dict[str, Any]) -> None:
    """Raise ValueError if the file sets dtypes of master weights, moments or gradients, as only flags may."""
    bf16 = config.get("bf16", {})
    unknown = sorted(set(bf16) - _BF16)
    if unknown:
        raise _unsupported(f"bf16.{unknown[0]}")
    for key, advice in _BF16_FLAGS.items():
        if bf16.get(key) not in (None, False, "auto"):
            raise _unsupported(f"bf16.{key}", advice)
    for key, value in config.get("data_types", {}).items():
        if value not in (None, "auto", "fp32"):
            raise _unsupported(f"data_types.{key} {value}", "leave it out, or use --grad_dtype bfloat16")


def offload(zero: dict[str, Any]) -> dict[str, bool]:
    """Return, for `optimizer` and `param`, whether that state is offloaded.

    ValueError for devices other than cpu.
    """
    offloaded = {}
    for kind, old in (("optimizer", "cpu_offload"), ("param", "cpu_offload_params")):
        setting = zero.get(f"offload_{kind}") or {}
        device = setting.get("device", "none") if isinstance(setting, dict) else setting
        if not isinstance(setting, dict):
            raise ValueError(
                f"--deepspeed: zero_optimization.offload_{kind}: expected an object, got {device!r}; write "
                '{"device": "cpu"}, or leave it out'
            )
        if device not in ("none", "cpu"):
            raise _unsupported(f"zero_optimization.offload_{kind}.device {device}", "use cpu or none")
        offloaded[kind] = device == "cpu" or bool(zero.get(old))
    return offloaded


def gathers_16bit(zero: dict[str, Any]) -> bool:
    """True if the file asks for a saved model with 16-bit weights."""
    return bool(zero.get("stage3_gather_16bit_weights_on_model_save"))


def checked_optimizer(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return `optimizer.params`; None if there is no such section. ValueError unless the type is AdamW."""
    section = config.get("optimizer")
    if section is None:
        return None
    kind, params = str(section.get("type")), dict(section.get("params") or {})
    if kind.lower() not in _ADAM:
        raise _unsupported(f"optimizer.type {kind}", "use AdamW, or leave it out")
    for key, value in params.items():
        if key in OPTIMIZER_DEFAULTS or (
            key in _OPTIMIZER_NEUTRAL and _OPTIMIZER_NEUTRAL[key] in (None, value)
        ):
            continue
        raise _unsupported(f"optimizer.params.{key} {value}")
    return params


def checked_scheduler(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the section `scheduler`, or None. ValueError unless the type is WarmupLR or WarmupDecayLR."""
    section = config.get("scheduler")
    if section is None:
        return None
    kind, params = section.get("type"), dict(section.get("params") or {})
    if kind not in _SCHEDULERS:
        advice = "use WarmupLR or WarmupDecayLR, or leave the section out: --lr_scheduler_type chooses then"
        raise _unsupported(f"scheduler.type {kind}", advice)
    unknown = sorted(set(params) - _SCHEDULERS[kind])
    if unknown:
        raise ValueError(
            f"--deepspeed: scheduler.params: {kind} has no {', '.join(unknown)}; it has "
            f"{', '.join(sorted(_SCHEDULERS[kind]))}"
        )
    if params.get("warmup_type", "log") not in ("log", "linear"):
        raise ValueError(
            f"--deepspeed: scheduler.params.warmup_type: log or linear, not {params['warmup_type']!r}"
        )
    if kind == "WarmupDecayLR" and "total_num_steps" not in params:
        raise ValueError('--deepspeed: scheduler.params: WarmupDecayLR needs total_num_steps: "auto"')
    return {"type": kind, "params": params}


def _unsupported(key: str, advice: str = "leave it out") -> ValueError:
    return ValueError(f"fastsft does not support {key} of --deepspeed; {advice}")
