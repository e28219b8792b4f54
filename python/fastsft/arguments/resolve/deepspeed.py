"""Resolves `--deepspeed`: translates a DeepSpeed file into engine settings, without importing DeepSpeed.

Values in the file must be "auto", or equal to the values of their flags. The rules are in
docs/spec/trainer_arguments.md, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastsft.arguments.engine_flags import DeepSpeedPlan, optimizer_of
from fastsft.arguments.fields import ArgumentFields
from fastsft.arguments.resolve import deepspeed_file
from fastsft.arguments.resolve.deepspeed_file import one_spelling
from fastsft.arguments.values import json_file_or_object
from fastsft.runtime.messages import warn_once

# ZeRO 1 shards only optimizer state. The engine then shards gradients, too, which does not change the
# results.
_STRATEGIES = {0: "no_shard", 1: "shard_grad_op", 2: "shard_grad_op", 3: "full_shard"}


def resolve_deepspeed(args: ArgumentFields) -> None:
    """Read the DeepSpeed file, if a file is given; the file may also set save_dtype."""
    args._deepspeed_plan = read_deepspeed(args) if args.deepspeed else None
    if args._deepspeed_plan and args._deepspeed_plan.saves_16bit and args.bf16 and args.save_dtype == "auto":
        args.save_dtype = "bfloat16"


def read_deepspeed(args: ArgumentFields) -> DeepSpeedPlan:
    """Read `args.deepspeed`. ValueError for unsupported keys, and for values that contradict flags."""
    config = one_spelling(json_file_or_object("deepspeed", args.deepspeed))
    if args.fsdp:
        raise ValueError("--fsdp and --deepspeed both choose the sharding; give one of the two")
    deepspeed_file.check_known(config)
    deepspeed_file.check_formats(config)
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    if stage not in _STRATEGIES:
        raise ValueError(f"--deepspeed: zero_optimization.stage: expected 0, 1, 2 or 3, got {stage!r}")
    _check_precision(config, args)
    differences = [text for text in _differences(config, args) if text]
    if differences:
        raise ValueError(
            '--deepspeed: these values contradict the flags; set them to "auto", or change the flags:\n- '
            + "\n- ".join(differences)
        )
    offload = deepspeed_file.offload(zero)
    if offload["param"] and stage == 3:
        warn_once(
            "--deepspeed: offload_param: shards of the weights stay on the device; masters and moments of "
            "the optimizer are on the host"
        )
    return DeepSpeedPlan(
        stage=stage,
        strategy=_STRATEGIES[stage],
        offload=offload["optimizer"] or offload["param"],
        saves_16bit=stage == 3 and deepspeed_file.gathers_16bit(zero),
        scheduler=deepspeed_file.checked_scheduler(config),
    )


def _check_precision(config: dict[str, Any], args: ArgumentFields) -> None:
    """Raise ValueError if file and flags choose different dtypes; a file without a dtype means fp16."""
    fp16 = config.get("fp16", {}).get("enabled")
    bf16 = config.get("bf16", {}).get("enabled")
    if fp16 is True or config.get("amp", {}).get("enabled") is True:
        raise ValueError(
            "fastsft does not support --deepspeed with fp16 or amp enabled: their loss scales go by other "
            'rules than --fp16; set "fp16": {"enabled": false} and use --fp16 True, or --bf16 True'
        )
    if bf16 not in (None, "auto", args.bf16):
        raise ValueError(
            f'--deepspeed: bf16.enabled is {str(bf16).lower()}, but --bf16 is {args.bf16}; set it to "auto"'
        )
    if fp16 == "auto" and args.fp16:
        raise ValueError(
            'fastsft does not support --deepspeed with "fp16": {"enabled": "auto"} and --fp16 True: '
            "DeepSpeed's loss scale goes by other rules; set it to false and keep --fp16 True, or use --bf16 "
            "True"
        )
    if not args.bf16 and not args.fp16 and fp16 is None and bf16 in (None, False):
        raise ValueError(
            "fastsft does not support --deepspeed files without a number format: DeepSpeed means fp16 then, "
            'with a loss scale of its own; use --bf16 True or --fp16 True, or "fp16": {"enabled": false} for '
            "float32"
        )


def _differences(config: dict[str, Any], args: ArgumentFields) -> Iterator[str | None]:
    batch = args.per_device_train_batch_size
    total = args.data_parallel_size * batch * args.gradient_accumulation_steps
    yield _differs(config, "train_micro_batch_size_per_gpu", batch, "per_device_train_batch_size")
    yield _differs(config, "gradient_accumulation_steps", args.gradient_accumulation_steps)
    ranks = "groups of context ranks" if args.context_parallel_size > 1 else "ranks"
    yield _differs(config, "train_batch_size", total, f"{ranks} * micro-batch * accumulation")
    yield _differs(config, "gradient_clipping", args.max_grad_norm, "max_grad_norm")
    optimizer = deepspeed_file.checked_optimizer(config)
    if optimizer is not None:
        # A missing key means DeepSpeed's default, which must also equal the flag.
        given = {**deepspeed_file.OPTIMIZER_DEFAULTS, **optimizer}
        if optimizer_of(args) != "adamw":
            yield f"optimizer.type is {config['optimizer']['type']}, but optim is {args.optim}"
        for key, value, flag in (
            ("lr", args.learning_rate, "learning_rate"),
            ("betas", [args.adam_beta1, args.adam_beta2], "adam_beta1, adam_beta2"),
            ("eps", args.adam_epsilon, "adam_epsilon"),
            ("weight_decay", args.weight_decay, "weight_decay"),
        ):
            yield _differs(given, key, value, flag, "optimizer.params.")
    scheduler = deepspeed_file.checked_scheduler(config)
    if scheduler is not None:
        given = {"warmup_max_lr": "auto", **scheduler["params"]}
        yield _differs(given, "warmup_max_lr", args.learning_rate, "learning_rate", "scheduler.params.")


def _differs(
    config: dict[str, Any], key: str, value: object, flag: str | None = None, prefix: str = ""
) -> str | None:
    given = config.get(key)
    if given in (None, "auto") or given == value:
        return None
    return f"{prefix}{key} is {given}, but {flag or key} is {value}"


def check_lengths(plan: DeepSpeedPlan, max_steps: int, warmup_steps: int) -> None:
    """Raise ValueError if the scheduler section's numbers of steps differ from the run's."""
    params = plan.scheduler["params"] if plan.scheduler else {}
    for key, value in (("total_num_steps", max_steps), ("warmup_num_steps", warmup_steps)):
        difference = _differs(params, key, value, "that of this run", "scheduler.params.")
        if difference:
            raise ValueError(f'--deepspeed: {difference}; set it to "auto"')
