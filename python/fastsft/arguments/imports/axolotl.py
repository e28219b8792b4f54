"""Rules for axolotl's YAML files, read from the source of release 0.19.0."""

from __future__ import annotations

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.axolotl_data import data_sets
from fastsft.arguments.imports.axolotl_keys import IDLE, LOST, RENAMED
from fastsft.arguments.imports.draft import Draft, is_off, number, whole, words
from fastsft.arguments.imports.framework import Framework

_PLUGINS = ("liger", "cut_cross_entropy")
_LORA = (
    "lora_r lora_alpha lora_dropout lora_target_modules lora_target_linear lora_modules_to_save "
    "peft_use_rslora lora_model_dir"
)
_CUT = "longer conversations are cut, there they are left out"
_WEIGHTS = "each learned token of a step counts the same; there each micro-batch does"


def _kind(draft: Draft) -> None:
    if draft.is_on("rl"):
        raise ValueError(
            f"rl: {draft.given['rl']} is not in, supervised fine-tuning is all there is; leave it out for "
            "that"
        )
    if "rl" in draft.left:
        draft.idle("rl", "supervised fine-tuning is all there is")
    plugins = words(draft.get("plugins"))
    if plugins and all(any(known in plugin.lower() for known in _PLUGINS) for plugin in plugins):
        draft.idle("plugins", shared.KERNELS)
    elif plugins:
        draft.lose("plugins", "code of plugins is not run")


def _adapter(draft: Draft) -> None:
    kind = draft.get("adapter")
    if not is_off(kind) and kind not in ("lora", "qlora"):
        raise ValueError(f"adapter: expected lora or qlora, got {kind}")
    is_lora = kind in ("lora", "qlora")
    if "adapter" in draft.left:
        draft.carry("adapter", {"lora": is_lora, **({"q_lora": True} if kind == "qlora" else {})})
    if is_lora:
        draft.switch("load_in_4bit", {"q_lora": True})
    targets, is_linear = words(draft.get("lora_target_modules")), draft.is_on("lora_target_linear")
    if is_linear and targets and is_lora:
        draft.idle("lora_target_linear", "lora_target_modules counts")
    values: dict[str, tuple[str, object]] = {
        **{key: (key, draft.get(key)) for key in ("lora_r", "lora_alpha", "lora_dropout")},
        "lora_modules_to_save": ("lora_modules_to_save", words(draft.get("lora_modules_to_save"))),
        "peft_use_rslora": ("lora_rslora", draft.get("peft_use_rslora")),
        "lora_model_dir": ("lora_weight_path", draft.get("lora_model_dir")),
        "lora_target_modules": ("lora_target_modules", targets),
    }  # fmt: skip
    if is_linear:
        values["lora_target_linear"] = ("lora_target_modules", ["all-linear"])
    elif is_lora and "lora_target_linear" in draft.left:
        draft.idle("lora_target_linear", "it is off")
    shared.adapters(draft, _LORA, values, is_lora)


def _lengths(draft: Draft) -> None:
    strategy = draft.get("excess_length_strategy", "drop")
    if draft.get("sequence_len") is not None:
        change = "" if strategy == "truncate" else _CUT
        draft.carry("sequence_len", {"model_max_length": draft.given["sequence_len"]}, change)
    draft.expect("excess_length_strategy", ("truncate",), "longer conversations are cut")
    draft.switch("curriculum_sampling", {"train_sampling_strategy": "sequential"})
    draft.switch("group_by_length", {"train_sampling_strategy": "group_by_length"})


def _steps(draft: Draft) -> None:
    """Read how often the run evaluates and saves; shares of all steps are written for times an epoch."""
    epochs = number("num_epochs", draft.get("num_epochs", 1.0))
    has_evaluation = draft.is_on("val_set_size") or draft.is_on("test_datasets")
    for key, field in (("saves_per_epoch", "save"), ("evals_per_epoch", "eval")):
        if not draft.is_on(key) or key not in draft.left:
            continue
        share = 1.0 / (number(key, draft.given[key]) * epochs)
        values = {f"{field}_strategy": "steps", f"{field}_steps": round(share, 6)}
        if field == "eval" and not has_evaluation:
            draft.idle(key, "there is no evaluation data")
        elif share < 1:
            draft.carry(key, values, "a share of all steps")
        else:
            draft.idle(key, "it is once, at the end")
    for key in () if has_evaluation else ("eval_steps", "eval_strategy", "evaluation_strategy"):
        if key in draft.left:
            draft.idle(key, "there is no evaluation data")
    for field in ("save", "eval"):
        if draft.is_on(f"{field}_steps") and f"{field}_steps" in draft.left:
            steps = draft.given[f"{field}_steps"]
            draft.carry(f"{field}_steps", {f"{field}_strategy": "steps", f"{field}_steps": steps})
    for name in ("save_strategy", "eval_strategy", "evaluation_strategy"):
        field = "save" if name == "save_strategy" else "eval"
        if name in draft.left and f"{field}_steps" in draft.values:
            draft.idle(name, f"{field}_steps counts")
        elif name in draft.left:
            draft.carry(name, {f"{field}_strategy": "no" if is_off(draft.given[name]) else draft.given[name]})
    draft.switch("load_best_model_at_end", {"load_best_model_at_end": True})


def _optimizer(draft: Draft) -> None:
    shared.optimizer(draft, "optimizer")
    if draft.is_on("cosine_min_lr_ratio") and draft.get("lr_scheduler", "cosine") == "cosine":
        kwargs = {"min_lr_rate": draft.given["cosine_min_lr_ratio"]}
        named = {"lr_scheduler_type": "cosine_with_min_lr"}
        draft.carry("cosine_min_lr_ratio", {**named, "lr_scheduler_kwargs": kwargs})
        if "lr_scheduler" in draft.left:
            draft.carry("lr_scheduler", named, "with cosine_min_lr_ratio")
    elif "cosine_min_lr_ratio" in draft.left:
        draft.idle("cosine_min_lr_ratio", "it has no value, or the schedule is no cosine")
    shared.schedule(draft, "lr_scheduler")
    draft.switch("lr_scheduler_kwargs", {"lr_scheduler_kwargs": draft.get("lr_scheduler_kwargs")})
    if draft.get("batch_size") is not None:
        steps = max(
            whole("batch_size", draft.given["batch_size"])
            // whole("micro_batch_size", draft.get("micro_batch_size", 1)),
            1,
        )
        if draft.get("gradient_accumulation_steps") is not None:
            draft.idle("batch_size", "gradient_accumulation_steps counts")
        else:
            change = (
                f"batch_size / micro_batch_size; {_WEIGHTS}" if steps > 1 else "batch_size / micro_batch_size"
            )
            draft.carry("batch_size", {"gradient_accumulation_steps": steps}, change)
    if isinstance(draft.get("learning_rate"), str):
        draft.carry("learning_rate", {"learning_rate": number("learning_rate", draft.given["learning_rate"])})


def _warmup(draft: Draft) -> None:
    """Read the warm-up, of which axolotl rounds steps down, and makes two of a single one."""
    ratio, most = draft.get("warmup_ratio"), draft.get("max_steps")
    if draft.get("warmup_steps") is not None:
        given = whole("warmup_steps", draft.given["warmup_steps"])
        draft.carry("warmup_steps", _warmed(given), "1 step is 2 there" if given == 1 else "")
        if ratio is not None:
            draft.idle("warmup_ratio", "warmup_steps counts")
    elif most is None and ratio is None:
        draft.default("warmup_ratio", 0.03, "at most 100 steps there, rounded down; 1 step is 2 there")
    elif most is None:
        change = "steps are rounded up, there down, and 1 step is 2 there"
        draft.carry("warmup_ratio", {"warmup_ratio": ratio}, change)
    elif ratio is None:
        values = _warmed(min(int(0.03 * whole("max_steps", most)), 100))
        draft.default("warmup_steps", values["warmup_steps"], "3 % of max_steps, at most 100")
    else:
        values = _warmed(int(number("warmup_ratio", ratio) * whole("max_steps", most)))
        draft.carry("warmup_ratio", values, "of max_steps, rounded down; 1 step is 2 there")


def _warmed(steps: int) -> dict[str, int]:
    return {"warmup_steps": 2 if steps == 1 else steps}


def _accumulation(draft: Draft) -> None:
    """Name the weights of tokens in a step of several micro-batches."""
    steps = draft.get("gradient_accumulation_steps")
    if steps is not None and whole("gradient_accumulation_steps", steps) > 1:
        draft.carry("gradient_accumulation_steps", {"gradient_accumulation_steps": steps}, _WEIGHTS)


def _precision(draft: Draft) -> None:
    """Read the compute dtype: `auto` is bfloat16 where the GPU has it."""
    is_half = draft.is_on("fp16") or draft.is_on("float16")
    for key in ("bf16", "bfloat16", "fp16", "float16"):
        value = draft.given.get(key)
        if key not in draft.left:
            continue
        if is_off(value) or (value == "auto" and is_half):
            draft.idle(key, "it is off")
        elif value == "auto":
            draft.carry(
                key, {"bf16": True}, "on a GPU without bfloat16 write fp16: true, which auto takes there"
            )
        elif value == "full":
            draft.carry(key, {"bf16": True}, "weights are float32 next to their bfloat16 values")
        else:
            draft.carry(key, {"fp16" if key in ("fp16", "float16") else "bf16": True})
    if "float32" in draft.left:
        draft.idle("float32", "float32 is the default")
    if draft.get("tf32") == "auto":
        draft.idle("tf32", "it is off by default")


def _reports(draft: Draft) -> None:
    switches = {
        "wandb_project": "wandb", "use_wandb": "wandb", "use_mlflow": "mlflow",
        "use_tensorboard": "tensorboard",
    }  # fmt: skip
    names = list(dict.fromkeys(name for key, name in switches.items() if draft.is_on(key)))
    for key in switches:
        project = f"set WANDB_PROJECT={draft.get(key)} in the environment" if key == "wandb_project" else ""
        draft.switch(key, {"report_to": names[0] if len(names) == 1 else names}, project)
    pushed = {"push_to_hub": True, "hub_private_repo": True, "hub_always_push": True}
    draft.switch("hub_model_id", {"hub_model_id": draft.get("hub_model_id"), **pushed})
    samples = {
        "sample_prompts": str(draft.get("num_generation_samples", 3)),
        "sample_max_new_tokens": draft.get("generation_max_new_tokens", 50),
    }
    draft.switch("generate_samples", samples, "replies to conversations of the evaluation data")
    for key in ("num_generation_samples", "generation_max_new_tokens"):
        if key in draft.left:
            draft.idle(key, "it goes with generate_samples")


def _others(draft: Draft) -> None:
    shared.deepspeed(draft)
    shared.fsdp(draft)
    tokens = draft.get("special_tokens")
    if not isinstance(tokens, dict):
        return
    if tokens.get("additional_special_tokens"):
        draft.lose("special_tokens", "add tokens before (docs/templates.md, New tokens)")
    else:
        draft.idle(
            "special_tokens", "no padding; the model's own count, replies end with the template's stop token"
        )


def _defaults(draft: Draft) -> None:
    if draft.values.get("lora"):
        draft.default("lora_dropout", 0.0)
    draft.default("model_max_length", 512, _CUT)
    draft.default("save_strategy", "epoch")
    draft.default("save_total_limit", 4)
    if draft.values.get("eval_strategy", "no") != "no":
        draft.default("eval_on_start", True)
    draft.default("lr_scheduler_type", "cosine")
    draft.default("num_train_epochs", 1.0)
    draft.default("per_device_train_batch_size", 1)
    draft.default(
        "per_device_eval_batch_size", draft.values["per_device_train_batch_size"], "micro_batch_size"
    )
    draft.default("average_tokens_across_devices", False)
    draft.default("logging_steps", 10, "there 0.5 % of all steps, from 1 to 10")
    draft.default("output_dir", "./model-out")
    is_wide = draft.is_on("float32") or draft.given.get("bf16", "auto") in (False, None)
    if not is_wide and "fp16" not in draft.values:
        draft.default("bf16", True, "auto: where the GPU has it")


AXOLOTL = Framework(
    "axolotl", "axolotl", "0.19.0", RENAMED, IDLE, LOST,
    f"{_LORA} rl plugins adapter load_in_4bit sequence_len excess_length_strategy curriculum_sampling "
    "group_by_length saves_per_epoch evals_per_epoch save_steps eval_steps save_strategy eval_strategy "
    "evaluation_strategy load_best_model_at_end optimizer lr_scheduler lr_scheduler_kwargs "
    "cosine_min_lr_ratio batch_size bf16 bfloat16 fp16 float16 float32 wandb_project use_wandb use_mlflow "
    "use_tensorboard hub_model_id generate_samples num_generation_samples generation_max_new_tokens "
    "deepspeed fsdp fsdp_config special_tokens datasets test_datasets val_set_size chat_template",
    (
        _kind, data_sets, _adapter, _lengths, _steps, _optimizer, _warmup, _accumulation, _precision,
        _reports, _others,
    ), _defaults,
    has_transformers=False,
)  # fmt: skip
