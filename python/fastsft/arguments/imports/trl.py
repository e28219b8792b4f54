"""Keys of TRL's YAML files and command lines for `trl sft`, read from the source of release 1.16."""

from __future__ import annotations

from typing import Any

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.draft import Draft, is_off, words
from fastsft.arguments.imports.framework import Framework, named
from fastsft.arguments.imports.templates import written

_RENAMED = {
    "model_name_or_path": "model_name_or_path", "trust_remote_code": "trust_remote_code",
}  # fmt: skip
_IDLE = named({
    shared.CACHE: "dataset_num_proc dataset_batch_size",
    shared.KERNELS: "attn_implementation pad_to_multiple_of padding_free packing_strategy eval_packing",
    shared.MEMORY: "activation_offloading gradient_checkpointing gradient_checkpointing_kwargs",
    "records are read as they are (docs/data_files.md)": "dataset_kwargs",
    "there is no padding": "pad_token",
    "replies end with the template's stop token": "eos_token",
    "records are read in blocks": "dataset_streaming streaming",
    "all data is shuffled": "shuffle_dataset",
    "torchrun or FASTSFT_NUM_PROCESSES starts ranks, fsdp holds their weights": "accelerate_config "
    "config_file num_processes",
    "it changes nothing here": "lora_task_type ignore_bias_buffers bnb_4bit_quant_storage env",
})  # fmt: skip
_LOST = named({
    "all weights are trained, or LoRA's adapters": "use_dora lora_target_parameters",
    "the base model has 4 bits (load_in_4bit) or the compute dtype": "load_in_8bit",
    "write the text to chat_template.jinja in the model directory": "chat_template_path",
    "give the arguments as flags": "model_init_kwargs",
    shared.PACKED: "packing",
    "the loss is the mean of the tokens' cross-entropy": "router_aux_loss_coef",
})  # fmt: skip
_LORA = "lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save use_rslora"
_ALL_LEARNED = (
    "replies alone are learned; there, of records with messages, every token is, unless assistant_only_loss "
    "is true"
)


def _model(draft: Draft) -> None:
    draft.expect("model_revision", ("main",), "download the revision and name its directory")
    for key in ("dtype", "torch_dtype"):
        if key in draft.left:
            draft.idle(
                key, "weights are float32; bf16: true computes in bfloat16, which is the default there"
            )


def _adapters(draft: Draft) -> None:
    is_lora = draft.is_on("use_peft")
    if "use_peft" in draft.left:
        draft.carry("use_peft", {"lora": is_lora})
    targets = words(draft.get("lora_target_modules"))
    values: dict[str, tuple[str, object]] = {
        "lora_r": ("lora_r", draft.get("lora_r")), "lora_alpha": ("lora_alpha", draft.get("lora_alpha")),
        "lora_dropout": ("lora_dropout", draft.get("lora_dropout")),
        "lora_target_modules": ("lora_target_modules", targets),
        "lora_modules_to_save": ("lora_modules_to_save", words(draft.get("lora_modules_to_save"))),
        "use_rslora": ("lora_rslora", draft.get("use_rslora")),
    }  # fmt: skip
    shared.adapters(draft, _LORA, values, is_lora)
    in_4_bits = draft.is_on("load_in_4bit")
    for key in ("use_bnb_nested_quant", "bnb_4bit_quant_type"):
        if key in draft.left and (not in_4_bits or draft.given[key] in (True, "nf4")):
            draft.idle(key, "q_lora has NF4 with double quantisation")
        elif key in draft.left:
            draft.lose(key, "q_lora has NF4 with double quantisation")
    if in_4_bits and is_lora:
        nested = draft.is_on("use_bnb_nested_quant")
        draft.carry(
            "load_in_4bit",
            {"q_lora": True},
            "" if nested else "scales are quantised as well (use_bnb_nested_quant)",
        )
    elif "load_in_4bit" in draft.left:
        draft.idle("load_in_4bit", "it is off or there are no adapters")


def _data(draft: Draft) -> None:
    """Read `dataset_name` with its splits, or `datasets`, a mixture."""
    mixture = draft.get("datasets")
    split, test = str(draft.get("dataset_train_split", "train")), str(draft.get("dataset_test_split", "test"))
    name = draft.get("dataset_name")
    evaluates = draft.get("eval_strategy", draft.get("evaluation_strategy", "no")) not in ("no", False)
    if isinstance(mixture, list) and mixture:
        paths, problems = [], []
        for entry in mixture:
            found, problem = _mixed(draft, entry)
            paths += found
            problems += problem
        values: dict[str, object] = {"data_path": paths[0] if len(paths) == 1 else paths} if paths else {}
        draft.lose("datasets", "; ".join(problems), values) if problems else draft.carry("datasets", values)
    elif name is not None:
        config = draft.get("dataset_config")
        _named(draft, str(name), None if config is None else str(config), split)
        if evaluates and draft.found(str(name)) is not None:
            draft.differ(f"eval_strategy: name the files of the split {test} as eval_data_path")
        elif evaluates:
            draft.default(
                "eval_data_path",
                shared.hub_data(str(name), str(config) if config else None, test)[0],
                "dataset_test_split",
            )
    for key in ("dataset_config", "dataset_train_split", "dataset_test_split"):
        if key in draft.left:
            draft.idle(
                key,
                "it is in data_path"
                if key != "dataset_test_split" or evaluates
                else "there is no evaluation",
            )
    if "test_split_size" in draft.left and not is_off(draft.given["test_split_size"]):
        draft.carry(
            "test_split_size", {"eval_split": draft.given["test_split_size"]}, "other records are drawn"
        )
    if "dataset_text_field" in draft.left:
        if draft.given["dataset_text_field"] in (None, "text"):
            draft.idle("dataset_text_field", "records with text alone are read so")
        else:
            draft.lose("dataset_text_field", f"rename the field {draft.given['dataset_text_field']} to text")


def _named(draft: Draft, name: str, config: str | None, split: str) -> None:
    if (found := draft.found(name)) is not None:
        draft.carry("dataset_name", {"data_path": found}, "" if found == name else "the place of the data")
        return
    try:
        shared.data_path(draft, "dataset_name", shared.hub_data(name, config, split))
    except ValueError as error:
        draft.lose("dataset_name", str(error), {"data_path": shared.hub_data(name, config)[0]})


def _mixed(draft: Draft, entry: Any) -> tuple[list[str], list[str]]:
    """Return the paths of a `datasets` entry, and what differs."""
    if not isinstance(entry, dict) or not entry.get("path"):
        raise ValueError(
            f"datasets: expected a list of objects with a path, got {entry!r:.60}; write - path: NAME or FILE"
        )
    problems = [f"{key} is not carried" for key in ("fraction",) if not is_off(entry.get(key))]
    path, files = str(entry["path"]), entry.get("data_files")
    if path in ("json", "csv", "parquet", "arrow") and files:
        return [str(file) for file in (files if isinstance(files, list) else [files])], problems
    if (found := draft.found(path)) is not None:
        return [found], problems
    try:
        return shared.hub_data(path, entry.get("name"), entry.get("split"), files), problems
    except ValueError as error:
        return shared.hub_data(path, entry.get("name")), [*problems, str(error)]


def _labels(draft: Draft) -> None:
    for name, value in written("model").items():
        draft.default(name, value, "the model's own template" if name == "template" else "")
    assistant = draft.is_on("assistant_only_loss")
    for key in ("assistant_only_loss", "completion_only_loss"):
        if key not in draft.left:
            continue
        if draft.is_on(key):
            draft.idle(key, "replies alone are learned")
        elif draft.given[key] is None or assistant:
            draft.idle(key, "it has no value" if draft.given[key] is None else "replies alone are learned")
        else:
            draft.lose(key, _ALL_LEARNED if key.startswith("assistant") else "prompts are not learned")
    if "assistant_only_loss" not in draft.given:
        draft.differ(f"assistant_only_loss: false is the default there; {_ALL_LEARNED}")


def _lengths(draft: Draft) -> None:
    key = "max_length" if "max_length" in draft.given else "max_seq_length"
    if key in draft.left and draft.given[key] is None:
        draft.lose(key, "there no conversation is cut: set it to the longest", {"model_max_length": 32768})
    elif key in draft.left:
        draft.carry(key, {"model_max_length": draft.given[key]})
    draft.expect("truncation_mode", ("keep_start",), "longer conversations are cut at the end")
    draft.expect("loss_type", ("nll", "chunked_nll"), "the loss is the mean of the tokens' cross-entropy")


def _others(draft: Draft) -> None:
    shared.optimizer(draft, "optim")
    shared.schedule(draft, "lr_scheduler_type")
    shared.trackers(draft)
    shared.deepspeed(draft)
    shared.fsdp(draft)


def _defaults(draft: Draft) -> None:
    draft.default("learning_rate", 2e-5)
    draft.default("logging_steps", 10)
    draft.default("model_max_length", 1024, "max_length")
    if "fp16" not in draft.values:
        draft.default("bf16", True)
    if draft.values.get("lora"):
        draft.default("lora_r", 16)
        draft.default("lora_alpha", 32)
        peft = "peft's choice for Llama, Qwen, Mistral and Gemma"
        draft.default("lora_target_modules", ["q_proj", "v_proj"], peft)


TRL = Framework(
    "TRL", "trl", "1.16", _RENAMED, _IDLE, _LOST,
    f"{_LORA} model_revision dtype torch_dtype use_peft load_in_4bit use_bnb_nested_quant "
    "bnb_4bit_quant_type datasets dataset_name dataset_config dataset_train_split dataset_test_split "
    "test_split_size dataset_text_field assistant_only_loss completion_only_loss max_length max_seq_length "
    "truncation_mode loss_type",
    (_model, _data, _labels, _adapters, _lengths, _others), _defaults,
)  # fmt: skip
