"""Keys of a DeepSpeed file: those that have a meaning here, no effect, or are refused."""

from __future__ import annotations

from typing import Any

from fastsft.runtime.messages import warn_once

_READ = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "optimizer", "scheduler", "fp16", "bf16", "amp", "zero_optimization", "data_types",
}  # fmt: skip
# Speed, memory and printing: the numbers do not hang on them.
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
# Settings that would change what is computed, with the value that does not.
_ZERO_NEUTRAL = {
    "zero_quantized_weights": False, "zero_quantized_gradients": False,
    "zero_quantized_nontrainable_weights": False, "zero_hpz_partition_size": 1, "mics_shard_size": -1,
    "mics_hierarchical_params_gather": False,
}  # fmt: skip
# Of the loss scaler; files have them in the section bf16, too, where nothing reads them.
_OF_FP16 = {
    "auto_cast", "loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis",
    "consecutive_hysteresis", "min_loss_scale",
}  # fmt: skip
_BF16_FLAGS = {
    "bf16_master_weights_and_grads": "leave it out, or use --master_dtype split and --grad_dtype bfloat16",
    "bf16_optimizer_states": "use --optim_dtype bfloat16",
}
_BF16 = {"enabled", "immediate_grad_update", "check_grad_overflow", *_OF_FP16, *_BF16_FLAGS}
_ADAM = ("adam", "adamw")
# Of DeepSpeed's FusedAdam.
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


def check_known(config: dict[str, Any]) -> None:
    """ValueError names sections that are unknown or refused; one line names what has no effect."""
    unknown = sorted(set(config) - _READ - _NO_EFFECT)
    if unknown:
        raise ValueError(
            f"fastsft does not support section {', '.join(unknown)} of --deepspeed; leave it out"
        )
    zero = config.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise ValueError(f"--deepspeed: zero_optimization: expected an object, got {zero!r}")
    for key, value in zero.items():
        if key in _ZERO_NEUTRAL and value == _ZERO_NEUTRAL[key]:
            continue
        if key not in _ZERO_READ | _ZERO_NO_EFFECT:
            raise ValueError(f"fastsft does not support zero_optimization.{key} of --deepspeed; leave it out")
    idle = sorted(
        {*set(config) & _NO_EFFECT, *(f"zero_optimization.{k}" for k in set(zero) & _ZERO_NO_EFFECT)}
    )
    if idle:
        warn_once(f"--deepspeed: no effect here, the engine plans its own buckets: {', '.join(idle)}")


def check_formats(config: dict[str, Any]) -> None:
    """ValueError for formats of masters, moments and gradients, which the engine has by its flags."""
    bf16 = config.get("bf16", {})
    unknown = sorted(set(bf16) - _BF16)
    if unknown:
        raise ValueError(f"fastsft does not support bf16.{unknown[0]} of --deepspeed; leave it out")
    for key, advice in _BF16_FLAGS.items():
        if bf16.get(key) not in (None, False, "auto"):
            raise ValueError(f"fastsft does not support bf16.{key} of --deepspeed; {advice}")
    for key, value in config.get("data_types", {}).items():
        if value not in (None, "auto", "fp32"):
            raise ValueError(
                f"fastsft does not support data_types.{key} {value} of --deepspeed; leave it out, or use "
                "--grad_dtype bfloat16"
            )


def offload(zero: dict[str, Any]) -> dict[str, bool]:
    """For `optimizer` and `param`eters, True if the state is on the host. ValueError for other places."""
    found = {}
    for kind, old in (("optimizer", "cpu_offload"), ("param", "cpu_offload_params")):
        device = (zero.get(f"offload_{kind}") or {}).get("device", "none")
        if device not in ("none", "cpu"):
            raise ValueError(
                f"fastsft does not support zero_optimization.offload_{kind}.device {device} of --deepspeed; "
                "use cpu or none"
            )
        found[kind] = device == "cpu" or bool(zero.get(old))
    return found


def gathers_16bit(zero: dict[str, Any]) -> bool:
    """True if the saved model has 16 bits a weight."""
    return bool(zero.get("stage3_gather_16bit_weights_on_model_save"))


def checked_optimizer(config: dict[str, Any]) -> dict[str, Any] | None:
    """`optimizer.params`, or None without the section. ValueError for other optimizers than AdamW."""
    section = config.get("optimizer")
    if section is None:
        return None
    kind, params = str(section.get("type")), dict(section.get("params") or {})
    if kind.lower() not in _ADAM:
        raise ValueError(
            f"fastsft does not support optimizer.type {kind} of --deepspeed; use AdamW, or leave it out"
        )
    for key, value in params.items():
        if key in OPTIMIZER_DEFAULTS or (
            key in _OPTIMIZER_NEUTRAL and _OPTIMIZER_NEUTRAL[key] in (None, value)
        ):
            continue
        raise ValueError(
            f"fastsft does not support optimizer.params.{key} {value} of --deepspeed; leave it out"
        )
    return params


def checked_scheduler(config: dict[str, Any]) -> dict[str, Any] | None:
    """The section `scheduler`, or None without. ValueError for others than WarmupLR and WarmupDecayLR."""
    section = config.get("scheduler")
    if section is None:
        return None
    kind, params = section.get("type"), dict(section.get("params") or {})
    if kind not in _SCHEDULERS:
        raise ValueError(
            f"fastsft does not support scheduler.type {kind} of --deepspeed; use WarmupLR or WarmupDecayLR, "
            "or leave the section out: --lr_scheduler_type chooses then"
        )
    unknown = sorted(set(params) - _SCHEDULERS[kind])
    if unknown:
        raise ValueError(f"--deepspeed: scheduler.params: {kind} has no {', '.join(unknown)}")
    if params.get("warmup_type", "log") not in ("log", "linear"):
        raise ValueError(
            f"--deepspeed: scheduler.params.warmup_type: log or linear, not {params['warmup_type']!r}"
        )
    if kind == "WarmupDecayLR" and "total_num_steps" not in params:
        raise ValueError('--deepspeed: scheduler.params: WarmupDecayLR needs total_num_steps: "auto"')
    return {"type": kind, "params": params}
