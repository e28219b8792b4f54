"""fastsft_state.json: a run's progress, and the settings that must be the same in a resumed run.

Rules: docs/spec/reliability.md, section 3.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.arguments.engine_flags import optimizer_of
from fastsft.arguments.fp8 import FP8_FLAGS
from fastsft.checkpoint.run_difference import difference
from fastsft.checkpoint.state_files import MOST_STATE_BYTES
from fastsft.data.chat.labelling import DATE, label_identity
from fastsft.data.token_cache import tokenizer_digest
from fastsft.model.tuned_gemms import restore_tuned_gemms, tuned_products
from fastsft.model.weight_identity import has_other_types, is_comparable, types_of
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import read_json

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.checkpoint.saved_run import SavedRun
    from fastsft.data.token_rows import TokenRows

STATE_NAME = "fastsft_state.json"
_VERSION = 2
# `tokenizer`, `labelling` and the date come before `data_hash`: if they differ, the hash differs, too, and an
# error message about them explains more.
_FATAL = (
    "adapters", "unit_hashes", "base_weights", "optimizer", "seed", "data_seed", "model_max_length",
    "tokenizer", "labelling", "num_conversations", DATE, "data_hash", "dataloader_drop_last",
    "train_sampling_strategy",
)  # fmt: skip
# Keys whose values may be unknown, in old checkpoints or if a script uses its own tokenizer or data set.
# `base_weights` are also unknown without adapters, and on all ranks except rank 0.
_IF_KNOWN = ("base_weights", "tokenizer", "labelling", "train_sampling_strategy", DATE, "data_hash")
TRAINED_BY = (  # arguments that influence the trained weights
    "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
    "label_smoothing_factor", "neftune_noise_alpha", "loss_norm", "average_tokens_across_devices", "bf16",
    "fp16", "loss_scale_window", "grad_dtype", "optim_dtype", *FP8_FLAGS,
)  # fmt: skip
_WARN = (*TRAINED_BY, "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps")
# Arguments whose values transformers takes from the optimizer file in a resume.
_OF_OPTIMIZER = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
_KEPT_THERE = "; the new value is used, where transformers keeps the checkpoint's"


def describe_run(trainer: SavedRun) -> dict[str, Any]:
    """Return the content of fastsft_state.json for a run's current state."""
    args, engine, state = trainer.args, trainer.engine, trainer.state
    return {
        "format_version": _VERSION,
        "step": state.global_step,
        "optimizer_step": engine.step_count,
        "epoch": state.epoch,
        "position": run_position(trainer, state.global_step),
        "world_size": engine.world_size,
        "adapters": trainer.model.adapter_facts(),
        "base_weights": trainer.model.base_weights(),
        "optimizer": optimizer_of(args),
        "unit_names": list(engine.unit_names),
        "unit_hashes": list(engine.unit_hashes),
        "micro_batch_tokens": trainer.planner.token_budget,
        "attention_kernel": trainer.model.attention_kernel,
        "tune_gemm": args.tune_gemm,
        "tuned_products": tuned_products(args.device),
        "sync_each_batch": trainer.planner.sync_each_batch,
        "tile_tokens": trainer.planner.tile_tokens,
        **trainer.loop_state(),
        "eval_data": _eval_data(trainer),
        **({"launched_by": trainer.launched_by} if trainer.launched_by else {}),
        **describe_request(trainer.step_args, trainer.tokenizer, trainer.train_dataset, trainer.train_rows),
    }


def describe_request(
    args: TrainingArguments, tokenizer: object, train_dataset: object, rows: TokenRows
) -> dict[str, Any]:
    """Return a description of the requested training from arguments and data. No engine is needed."""
    batch = _batch(args)
    labelling = getattr(train_dataset, "labelling", None) or {}
    return {
        "batch": {**batch, "global": math.prod(batch.values())},
        "seed": args.seed,
        "data_seed": args.seed if args.data_seed is None else args.data_seed,
        "model_max_length": args.model_max_length,
        "tokenizer": tokenizer_digest(tokenizer),
        "labelling": label_identity(labelling) or None,
        **({DATE: labelling[DATE]} if DATE in labelling else {}),
        "num_conversations": len(rows),
        "data_hash": data_hash(rows),
        "dataloader_drop_last": args.dataloader_drop_last,
        "train_sampling_strategy": _sampling(args),
        **{name: getattr(args, name) for name in _WARN},
    }


def _sampling(args: TrainingArguments) -> str:
    """Return the sampling strategy as text, with the group size if rows are grouped by length."""
    group = args.train_batch_size * args.gradient_accumulation_steps
    grouped = args.train_sampling_strategy == "group_by_length"
    return f"group_by_length of {group}" if grouped else str(args.train_sampling_strategy)


def _batch(args: TrainingArguments) -> dict[str, int]:
    return {
        "per_device": args.train_batch_size,
        "accumulation": args.gradient_accumulation_steps,
        "world_size": args.data_parallel_size,
    }


def run_position(trainer: SavedRun, step: int) -> dict[str, int]:
    """Return the result of `data_position` for a run after `step` steps."""
    drop_last = trainer.args.dataloader_drop_last
    return data_position(step, len(trainer.train_rows), drop_last=drop_last, **_batch(trainer.args))


def data_position(
    step: int, num_conversations: int, *, per_device: int, accumulation: int, world_size: int, drop_last: bool
) -> dict[str, int]:
    """Return the current epoch after `step` steps, and how many of its conversations are trained.

    Rule: docs/spec/trainer_semantics.md, section 5.
    """
    rows = per_device * world_size
    micro_batches = num_conversations // rows if drop_last else math.ceil(num_conversations / rows)
    steps = max(1, math.ceil(micro_batches / accumulation))
    epoch, within = divmod(step, steps)
    consumed = min(within * accumulation * rows, num_conversations)
    return {"epoch": epoch, "conversations": consumed}


def _eval_data(trainer: SavedRun) -> dict[str, str | None] | None:
    """Return the `data_hash` of each evaluation data set by name ("" for a single set); None without any."""
    rows = trainer.eval_rows
    if rows is None:
        return None
    by_name = rows if isinstance(rows, dict) else {"": rows}
    return {name: data_hash(rows_of_set) for name, rows_of_set in by_name.items()}


def data_hash(rows: TokenRows) -> str | None:
    """Return the CRC-32C of all token ids and target spans; data, tokenizer, template and masks change it.

    None for rows that are read anew in every epoch, and so are not known in advance.
    """
    return rows.checksum()


def holds_only_model(directory: str | Path) -> bool:
    """True if a checkpoint was saved with --save_only_model."""
    try:
        return bool(read_run_state(directory).get("only_model", False))
    except ValueError:
        return False


def read_run_state(directory: str | Path) -> dict[str, Any]:
    """Return the content of fastsft_state.json. ValueError if it is missing or has another format version."""
    path = Path(directory) / STATE_NAME
    if not path.exists():
        raise ValueError(f"{directory}: no {STATE_NAME}; it was not written by fastsft")
    content = read_json(path, MOST_STATE_BYTES)
    if not isinstance(content, dict) or content.get("format_version") != _VERSION:
        version = content.get("format_version") if isinstance(content, dict) else None
        raise ValueError(
            f"{path}: expected format_version {_VERSION}, got {version}; resume with the version of fastsft "
            "that wrote it, or start from step 0 with another --output_dir or --no_resume True"
        )
    return content


def check_same_run(trainer: SavedRun, saved: dict[str, Any], directory: str | Path) -> None:
    """Raise ValueError if the run would not continue the saved run. Warn about harmless differences."""
    # old checkpoints lack these keys
    current, saved = describe_run(trainer), {"optimizer": "adamw", "fp8_wgrad": False, **saved}
    saved["labelling"] = label_identity(saved.get("labelling") or {}) or None  # drops a record limit
    if saved.get("base_weights") is not None:  # the checkpoint has adapters
        current["base_weights"] = trainer.model.base_weights_next_to(directory)
    for name in _FATAL:
        if saved.get(name) != current.get(name) and not _is_unknown(name, saved.get(name), current.get(name)):
            raise ValueError(
                f"{directory} {difference(name, saved.get(name), current[name])}, or start from step 0 with "
                "another --output_dir or --no_resume True"
            )
    _warn_of_base_types(saved.get("base_weights"), current["base_weights"], directory)
    _keep_plan(trainer, saved, directory)
    _keep_attention_kernel(trainer, saved, directory)
    _restore_tuned_gemms(trainer, saved, directory)
    _check_global_batch(saved["batch"], current["batch"], directory)
    _check_position(saved, run_position(trainer, saved["step"]), directory)
    _warn_of_eval_data(trainer, saved.get("eval_data"), current["eval_data"], directory)
    for name in _WARN:
        if name in saved and saved[name] != current[name]:
            warn_of_change(directory, name, saved[name], current[name])


def _is_unknown(name: str, old: Any, new: Any) -> bool:
    """True if two different values of key `name` do not prove that the runs differ."""
    if name not in _IF_KNOWN or old is None or new is None:
        return name in _IF_KNOWN
    return name == "base_weights" and not is_comparable(old, new)


def warn_of_change(directory: str | Path, name: str, saved: object, current: object) -> None:
    """Warn that an argument differs from the checkpoint's value, and that the new value is used."""
    old = _KEPT_THERE if name in _OF_OPTIMIZER else ""
    warn_once(f"{directory}: {name} was {saved}, now it is {current}{old}")


def _warn_of_base_types(old: str | None, new: str | None, directory: str | Path) -> None:
    """Warn if the base weights have another dtype, in which case they cannot be compared."""
    if old is not None and new is not None and has_other_types(old, new):
        warn_of_change(directory, "the type of the base weights", types_of(old), types_of(new))


def _warn_of_eval_data(trainer: SavedRun, old: object, new: object, directory: str | Path) -> None:
    """Warn if the evaluation data differ, because losses before and after the resume cannot be compared."""
    if not isinstance(old, dict) or not isinstance(new, dict) or old == new:
        return
    if None in (*old.values(), *new.values()):
        return
    best = ", and the best of all is looked for (--metric_for_best_model)"
    warn_once(
        f"{directory}: the data to evaluate on were others: the losses before and from here on cannot be "
        f"compared{best if trainer.args.metric_for_best_model else ''}"
    )


def _keep_plan(trainer: SavedRun, saved: dict[str, Any], directory: str | Path) -> None:
    """Use the checkpoint's micro-batch plan. A new plan depends on free memory, and may round differently."""
    args, budget, reduced_each, tiles = trainer.args, None, None, None
    if args.micro_batch_tokens is None:
        budget = saved.get("micro_batch_tokens")
    if args.sync_each_batch is None and saved.get("world_size") == trainer.engine.world_size:
        reduced_each = saved.get("sync_each_batch", True)  # old checkpoints lack the key
    if args.tile_tokens is None:
        tiles = saved.get("tile_tokens", 0)  # here, too
    try:
        trainer.planner.keep_plan(budget, reduced_each, tiles)
    except ValueError as error:
        tokens = trainer.planner.token_budget if budget is None else budget
        once, other = (
            ("", "") if reduced_each is not False else (" and one reduction a step", " or --sync_each_batch")
        )
        other = " or --tile_tokens" if tiles is not None and not other else other
        raise ValueError(
            f"{directory}: micro-batches of {tokens:,} tokens{once}, with which a resumed run gives the same "
            f"bits: {error}; another --micro_batch_tokens{other} rounds differently"
        ) from error


def _keep_attention_kernel(trainer: SavedRun, saved: dict[str, Any], directory: str | Path) -> None:
    """Use the kernel that `--attention_kernel auto` chose before. Another kernel may round differently."""
    was, now = saved.get("attention_kernel"), trainer.model.attention_kernel
    if was is None or now is None or was == now:
        return
    is_free = trainer.args.attention_kernel == "auto" and was in ("flash2", "cudnn")
    if not (is_free and trainer.model.restore_attention_kernel(was)):
        warn_of_change(directory, "attention_kernel", was, now)


def _restore_tuned_gemms(trainer: SavedRun, saved: dict[str, Any], directory: str | Path) -> None:
    """Use the checkpoint's GEMM algorithms. A new measurement may choose others, which round differently."""
    was, now = saved.get("tune_gemm", False), trainer.args.tune_gemm
    products, tokens = saved.get("tuned_products"), saved.get("micro_batch_tokens")
    reason = None if was == now else f"tune_gemm was {was}, now it is {now}"
    if products and now and tokens != trainer.planner.token_budget:
        reason = f"micro-batches had up to {tokens:,} tokens, and have {trainer.planner.token_budget:,}"
    elif products and now:
        reason = restore_tuned_gemms(products, trainer.args.device)
    if reason:
        warn_once(f"{directory}: matrix products may run by other algorithms from here on: {reason}")


def _check_global_batch(saved: dict[str, int], current: dict[str, int], directory: str | Path) -> None:
    if saved["global"] == current["global"]:
        return
    rows = current["per_device"] * current["world_size"]
    accumulation, rest = divmod(saved["global"], rows)
    per_device, before, ranks = saved["per_device"], saved["accumulation"], saved["world_size"]
    advice = (
        f"--gradient_accumulation_steps {accumulation} restores it"
        if rest == 0 and accumulation > 0
        else f"no accumulation restores it with micro-batches of {rows} conversations over all ranks; resume "
        f"with --per_device_train_batch_size {per_device} --gradient_accumulation_steps {before} on {ranks} "
        f"rank{'' if ranks == 1 else 's'}"
    )
    raise ValueError(
        f"{directory}: the global batch was {saved['global']} conversations, now it is {current['global']}; "
        f"{advice}"
    )


def _check_position(saved: dict[str, Any], current: dict[str, int], directory: str | Path) -> None:
    """Raise ValueError if the saved step's data position changed, as epochs have other lengths now."""
    old, batch = saved["position"], saved["batch"]
    if old != current:
        raise ValueError(
            f"{directory}: after step {saved['step']} the run was in epoch {old['epoch']} after "
            f"{old['conversations']} conversations of it; now that would be epoch {current['epoch']} after "
            f"{current['conversations']}; resume with --per_device_train_batch_size {batch['per_device']} "
            f"--gradient_accumulation_steps {batch['accumulation']} on {batch['world_size']} ranks"
        )
