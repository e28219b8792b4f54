"""Keys of ms-swift's command lines and YAML files for `swift sft`, read from release 4.6's source."""

from __future__ import annotations

import math
import re
from pathlib import Path

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.draft import Draft, is_off, number, whole, words
from fastsft.arguments.imports.framework import Framework, named
from fastsft.arguments.imports.templates import written

_RENAMED = {"max_epochs": "num_train_epochs", "early_stop_interval": "early_stopping_patience",
            "hub_token": "hub_token", "max_shard_size": "max_shard_size",
            "sequence_parallel_size": "context_parallel_size"}  # fmt: skip
_IDLE = named({
    shared.CACHE: "dataset_num_proc load_from_cache_file download_mode lazy_tokenize packing_num_proc "
    "cached_dataset cached_val_dataset",
    shared.KERNELS: "attn_impl experts_impl padding_free use_logits_to_keep use_liger_kernel "
    "enable_npu_model_patch packing_strategy packing_length",
    shared.MEMORY: "gradient_checkpointing vit_gradient_checkpointing device_map max_memory use_flash_ckpt",
    "the family is that of config.json": "model_type task_type",
    "it is about inference": "max_new_tokens temperature top_k top_p repetition_penalty num_beams stream "
    "stop_words response_prefix ds3_gather_for_generation",
    "data sets are files or names of the hub": "strict use_hf check_model local_repo_path "
    "custom_dataset_info ignore_args_error disable_auto_column_mapping",
    "the order of evaluation data changes nothing": "val_dataset_shuffle",
    "an empty block of thoughts is where the template writes it": "add_non_thinking_prefix",
    "it sets variables of the environment: set them there": "ENV",
    "it only reports": "acc_strategy enable_channel_loss eval_use_evalscope eval_dataset eval_dataset_args "
    "eval_limit eval_generation_config extra_eval_args eval_metric create_checkpoint_symlink",
    "the run writes to output_dir itself": "add_version load_args load_data_args",
    "there is no SwanLab; trackers are tensorboard, wandb and mlflow": "swanlab_token swanlab_project "
    "swanlab_workspace swanlab_exp_name swanlab_mode",
    "peft's rules count": "tuner_backend use_swift_lora lora_dtype",
    "records are read in blocks": "streaming shuffle_buffer_size stopping_strategy",
    "it is for identities in ms-swift's own data": "model_name model_author",
    "the method that it belongs to is off or not in": "bnb_4bit_quant_storage bnb_4bit_compute_dtype "
    "galore_rank galore_update_proj_gap galore_scale freeze_vit freeze_aligner",
    shared.TEXT: "max_pixels norm_bbox vit_lr aligner_lr",
    "safetensors are written": "safe_serialization",
    "Ray and other launchers start fastsft by docs/clusters.md": "use_ray ray_exp_name device_groups",
})  # fmt: skip
_LOST = named({
    "all weights are trained, or LoRA's adapters": "freeze_parameters freeze_parameters_regex "
    "freeze_parameters_ratio trainable_parameters trainable_parameters_regex freeze_llm use_dora "
    "lorap_lr_ratio use_galore lisa_activated_layers target_parameters init_strategy",
    "the loss is the mean of the tokens' cross-entropy": "enable_dft_loss loss_type router_aux_loss_coef",
    "code of plugins is not run": "external_plugins custom_register_path callbacks optimizer",
    shared.PACKED: "packing",
    "the model's own template writes calls and thoughts": "agent_template enable_thinking preserve_thinking "
    "template_backend",
    "add tokens before (docs/templates.md, New tokens)": "new_special_tokens",
    "the model's own configuration counts": "rope_scaling max_model_len model_kwargs num_labels problem_type",
    "download that revision and name its directory": "model_revision",
    "rename the columns (docs/data_files.md)": "columns",
    "data sets follow each other and are shuffled": "interleave_prob",
    "ranks share conversations": "deepspeed_autotp_size zero_hpz_partition_size",
    "optimizer and data go on with the weights": "resume_only_model",
})  # fmt: skip
# Hybrid thinking models in ms-swift 4.6, whose TemplateMeta has is_thinking and non_thinking_prefix: names of
# templates, and names of models whose template it is without the key
_HYBRID_TEMPLATES = re.compile(
    r"qwen3(_[58])?|deepseek_v(3_1|4\w*)|glm(4_[57]|5_\w+)|gemma4|hunyuan|hy_v3\w*|ling3|minicpm5\w*|"
    r"kimi_k\w+|spark2_5|xing4_0|youtu_llm"
)
_HYBRID_MODELS = re.compile(r"qwen3-[\d.]+b(-a[\d.]+b)?(-base)?|glm-4\.[57](-\w+)?|hunyuan-.*", re.IGNORECASE)
_LORA = "lora_rank lora_alpha lora_dropout target_modules target_regex modules_to_save lora_bias use_rslora"
_KINDS = ("tuner_type", "train_type", "sft_type")  # the same key in ms-swift 4, 3 and 2
_SHARDED = {
    "zero0": "", "zero1": "shard_grad_op auto_wrap", "zero2": "shard_grad_op auto_wrap",
    "zero2_offload": "shard_grad_op auto_wrap offload", "zero3": "full_shard auto_wrap",
    "zero3_offload": "full_shard auto_wrap offload", "fsdp2": "full_shard auto_wrap",
}  # fmt: skip


def _model(draft: Draft) -> None:
    for key in ("model", "model_id_or_path"):
        if key in draft.left and draft.given[key] is not None:
            name = str(draft.given[key])
            is_of_hub = draft.found(name) is None and not draft.is_on("use_hf")
            change = "a name of ModelScope there, of the hub here" if is_of_hub else ""
            draft.carry(key, {"model_name_or_path": name}, change)
    adapters = words(draft.get("adapters"))
    if len(adapters) == 1:
        draft.carry("adapters", {"lora_weight_path": adapters[0]})
    elif "adapters" in draft.left:
        if adapters:
            draft.lose("adapters", "one adapter goes on: merge the others first (fastsft merge)")
        else:
            draft.idle("adapters", "there are none")


def _method(draft: Draft) -> None:
    """Read how weights are trained: adapters by default."""
    key = next((key for key in _KINDS if key in draft.given), _KINDS[0])
    kind = draft.get(key, "lora")
    if kind not in ("lora", "full"):
        raise ValueError(f"{key}: expected lora or full, got {kind}: fastsft trains all weights or adapters")
    is_lora = kind == "lora"
    if key in draft.left:
        draft.carry(key, {"lora": is_lora})
    alpha = draft.get("lora_alpha")
    whole = int(alpha) if isinstance(alpha, float) and alpha.is_integer() else alpha
    values: dict[str, tuple[str, object]] = {
        "lora_rank": ("lora_r", draft.get("lora_rank")), "lora_alpha": ("lora_alpha", whole),
        "lora_dropout": ("lora_dropout", draft.get("lora_dropout")),
        "target_modules": ("lora_target_modules", words(draft.get("target_modules"))),
        "target_regex": ("lora_target_modules", [draft.get("target_regex")]),
        "modules_to_save": ("lora_modules_to_save", words(draft.get("modules_to_save"))),
        "lora_bias": ("lora_bias", draft.get("lora_bias")),
        "use_rslora": ("lora_rslora", draft.get("use_rslora")),
    }  # fmt: skip
    shared.adapters(draft, _LORA, values, is_lora)
    bits = draft.get("quant_bits")
    if bits is not None and str(bits) == "4" and is_lora:
        draft.carry("quant_bits", {"q_lora": True})
    draft.expect("quant_bits", (), "the base model has 4 bits with LoRA, or the compute dtype")
    of_4_bits = {"quant_method": "bnb", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    for name, usual in of_4_bits.items():
        expected = (usual,) if bits is not None else (draft.get(name),)
        draft.expect(name, expected, "q_lora has bitsandbytes' NF4 with double quantisation")


def _data(draft: Draft) -> None:
    for key, field in (("dataset", "data_path"), ("val_dataset", "eval_data_path")):
        names = draft.get(key)
        if key not in draft.left or is_off(names):
            continue
        paths, problems = [], []
        for name in names if isinstance(names, list) else str(names).split():
            found, problem = _path(draft, str(name))
            paths += found
            problems += problem
        values: dict[str, object] = {field: paths[0] if len(paths) == 1 else paths}
        draft.lose(key, "; ".join(problems), values) if problems else draft.carry(key, values)
    ratio = draft.get("split_dataset_ratio")
    if "split_dataset_ratio" in draft.left and not is_off(ratio) and number("split_dataset_ratio", ratio):
        draft.carry("split_dataset_ratio", {"eval_split": ratio}, "other records are drawn")
    elif "split_dataset_ratio" in draft.left:
        draft.idle("split_dataset_ratio", "nothing is taken out for evaluation")


def _path(draft: Draft, given: str) -> tuple[list[str], list[str]]:
    """Return the paths of a data set: `hf::` or `ms::`, a name or file, `:subsets`, `#number of records`."""
    hub, _, rest = given.rpartition("::")
    name, _, number = rest.partition("#") if draft.found(rest) is None else (rest, "", "")
    problems = [f"{name}: {number} records are drawn there, every record is read"] if number else []
    if (found := draft.found(name)) is not None:
        return [found], problems
    name, _, subsets = name.partition(":")
    if not shared.is_hub_name(name):
        return [name], problems
    if hub.lower() != "hf" and not draft.is_on("use_hf"):
        problems.append(f"{name} is a name of ModelScope: see that the hub has it")
    if not subsets:
        return shared.hub_data(name), problems
    return [path for subset in subsets.split("/") for path in shared.hub_data(name, subset)], problems


def _labels(draft: Draft) -> None:
    if draft.get("template") is not None:
        draft.carry("template", written("model"), "the model's own, which such a name means")
    _system(draft)
    parts = str(draft.get("loss_scale", "default")).split("+")
    known: dict[str, dict[str, object]] = {
        "default": {}, "last_round": {"learn": "after_last_user"},
        "ignore_empty_think": {"learn_thoughts": "filled"},
    }  # fmt: skip
    values = {name: value for part in parts for name, value in known.get(part, {}).items()}
    if values and all(part in known for part in parts):
        draft.carry("loss_scale", values)
    draft.expect("loss_scale", ("default",), "replies are learned, all with the weight 1")
    _empty_thoughts(draft)
    draft.expect("use_chat_template", (True,), "the template is used")


def _empty_thoughts(draft: Draft) -> None:
    """Read `disable_ignore_empty_think`: without it hybrid thinking models do not learn empty blocks."""
    kept = draft.is_on("disable_ignore_empty_think")
    if "disable_ignore_empty_think" in draft.left:
        draft.idle(
            "disable_ignore_empty_think", "empty blocks of thoughts are learned without learn_thoughts"
        )
    template = draft.get("template")
    model = Path(str(draft.values.get("model_name_or_path", ""))).name
    is_hybrid = (
        _HYBRID_MODELS.fullmatch(model) if template is None else _HYBRID_TEMPLATES.fullmatch(str(template))
    )
    if is_hybrid and not kept:
        draft.default(
            "learn_thoughts", "filled", "ms-swift adds ignore_empty_think for a hybrid thinking model"
        )


def _system(draft: Draft) -> None:
    """Read `system`: the text of records without one, or the name of a .txt file with it."""
    given = str(draft.get("system", ""))
    if not given:
        return
    if not given.endswith(".txt"):
        draft.carry("system", {"default_system": given.replace("\\n", "\n")})
    elif (found := draft.found(given)) is not None:
        draft.carry("system", {"default_system": Path(found).read_text("utf-8")}, "the file's text")
    else:
        draft.lose("system", "no such file here: write its text as default_system")


def _lengths(draft: Draft) -> None:
    is_cut = draft.get("truncation_strategy") == "right"
    if draft.get("max_length") is not None:
        change = "" if is_cut else "longer conversations are cut, there they are left out"
        draft.carry("max_length", {"model_max_length": draft.given["max_length"]}, change)
    draft.expect("truncation_strategy", ("right",), "longer conversations are cut at the end")
    for key in ("dataset_shuffle", "train_dataloader_shuffle"):
        if key in draft.left and draft.given[key] is False:
            draft.carry(key, {"train_sampling_strategy": "sequential"})
        elif key in draft.left:
            draft.idle(key, "all data is shuffled")


def _others(draft: Draft) -> None:
    dtype = draft.get("torch_dtype")
    if dtype is not None:
        flags = {"bfloat16": "bf16", "float16": "fp16"}
        change = (
            "weights are float32 next to their values in it" if dtype in flags else "float32 is the default"
        )
        draft.carry("torch_dtype", {flags[str(dtype)]: True} if dtype in flags else {}, change)
    shared.optimizer(draft, "optim")
    shared.schedule(draft, "lr_scheduler_type")
    shared.trackers(draft)
    for key in ("deepspeed", "fsdp"):
        if (name := draft.get(key)) in _SHARDED:
            strategy = _SHARDED[str(name)]
            draft.carry(key, {"fsdp": strategy} if strategy else {}, "its sharding")
    shared.deepspeed(draft)
    shared.fsdp(draft)


def _defaults(draft: Draft) -> None:
    for name, value in written("model").items():
        draft.default(name, value)
    draft.default("lora", True, "tuner_type")
    if draft.values["lora"]:
        draft.default("lora_alpha", 32)
        draft.default("lora_target_modules", ["all-linear"])
    draft.default("learning_rate", 1e-4 if draft.values["lora"] else 1e-5)
    if "fp16" not in draft.values and draft.get("torch_dtype") is None:
        draft.default("bf16", True, "the dtype of the model")
    draft.default("model_max_length", 32768, "the model's own there: set the longest that you have")
    draft.default("per_device_train_batch_size", 1)
    draft.default("per_device_eval_batch_size", 1)
    steps = max(
        1, math.ceil(16 / whole("per_device_train_batch_size", draft.values["per_device_train_batch_size"]))
    )
    draft.default("gradient_accumulation_steps", steps, "16 conversations a step, by one rank")
    draft.default("weight_decay", 0.1)
    draft.default("adam_beta2", 0.95)
    draft.default("lr_scheduler_type", "cosine")
    draft.default("logging_steps", 5)
    draft.default("logging_first_step", True)
    model = str(draft.values.get("model_name_or_path", "model")).rstrip("/").rpartition("/")[2]
    draft.default("output_dir", f"output/{model}")
    if {"eval_split", "eval_data_path"} & draft.values.keys():
        draft.default("eval_strategy", draft.values.get("save_strategy", "steps"))
        draft.default("eval_steps", draft.values.get("save_steps", 500))


SWIFT = Framework(
    "ms-swift", "swift", "4.6", _RENAMED, _IDLE, _LOST,
    f"{_LORA} {' '.join(_KINDS)} model model_id_or_path adapters quant_bits quant_method "
    "bnb_4bit_quant_type bnb_4bit_use_double_quant dataset val_dataset split_dataset_ratio template "
    "loss_scale use_chat_template max_length truncation_strategy dataset_shuffle train_dataloader_shuffle "
    "torch_dtype system",
    (_model, _method, _data, _labels, _lengths, _others), _defaults,
)  # fmt: skip
