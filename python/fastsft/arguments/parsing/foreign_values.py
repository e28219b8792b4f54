"""Values of other trainers' flags that say which flag is meant: `finetuning_type: lora` is `--lora True`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FULL = "leave it out: without --lora True all weights are trained"
_ADAPTERS = "write --lora True"
_IN_4_BITS = "write --lora True and --q_lora True"
_OF_KIND: Mapping[str, str] = {
    "full": _FULL, "sft": _FULL, "none": _FULL,
    "lora": _ADAPTERS, "qlora": _IN_4_BITS, "lora+": _ADAPTERS, "rslora": f"{_ADAPTERS} and --lora_rslora "
    "True",
    "freeze": "fastsft trains all weights, or LoRA's adapters (--lora True): some layers alone are not in",
}  # fmt: skip
_KINDS = (
    "finetuning_type",
    "finetune_type",
    "train_type",
    "tuner_type",
    "adapter",
    "adapter_type",
    "peft_type",
)
_SWITCHES = (
    "use_lora",
    "use_peft",
    "lora_enable",
    "enable_lora",
    "peft",
    "use_adapter",
    "use_qlora",
    "qlora",
)
_RANKS = ("lora_rank", "lora_dim", "r", "rank", "adapter_rank", "lora_attention_dim")
_TARGETS = ("lora_target", "target_modules", "lora_targets", "lora_target_linear", "lora_modules")
_WHOLE = ("modules_to_save", "additional_target")
_PATHS = ("lora_model_dir", "adapter_name_or_path", "peft_model_path", "adapter_path", "resume_lora")
_ALL = ("all", "all-linear", "all_linear", "true", "1")
_FILES = ("datasets", "dataset", "test_datasets", "eval_dataset", "dataset_mixer")
_ON = ("true", "yes", "on", "1")
_HUB_NAME = re.compile(r"[\w-]+/[\w.-]+(?<!\.json)(?<!\.jsonl)(?<!\.parquet)")
_OFF = ("false", "no", "off", "none", "null", "")


def about_value(name: str, value: object) -> str | None:
    """The flag to write for another trainer's `name` with `value`, or that it is off; None for other values.

    name: without dashes in front, words joined by `_`. value: of a file or of Python, or a word.
    """
    word = _word(value)
    if name in _KINDS and word in _OF_KIND:
        return _OF_KIND[word]
    if word in _OFF:
        return _FULL if name in (*_KINDS, *_SWITCHES) else "leave it out: it is off"
    if name in _SWITCHES and word in _ON:
        return _IN_4_BITS if "qlora" in name else _ADAPTERS
    if name in _RANKS and word.isdigit():
        return f"write --lora True and --lora_r {word}"
    if name in _TARGETS:
        return f"write --lora True and --lora_target_modules {_modules(value, word)}"
    if name in _WHOLE:
        return f"write --lora True and --lora_modules_to_save {_modules(value, word)}"
    if name in _PATHS:
        return f"write --lora True and --lora_weight_path {value}"
    if name == "use_rslora" and word in _ON:
        return "write --lora True and --lora_rslora True"
    if name == "stage" and word not in ("sft", "1"):
        return f"supervised fine-tuning is all there is: {word} is not in"
    return _about_files(name, value)


def _word(value: object) -> str:
    return str(value).strip().lower()


def _modules(value: object, word: str) -> str:
    if word in _ALL and not isinstance(value, list):
        return "all-linear"
    names = value if isinstance(value, list | tuple) else str(value).replace(",", " ").split()
    return " ".join(map(str, names))


def _about_files(name: str, value: object) -> str | None:
    """Of axolotl's list of files with their kinds."""
    if name not in _FILES or not isinstance(value, list) or not value:
        return None
    paths = [item.get("path") if isinstance(item, dict) else item for item in value]
    if not all(isinstance(path, str) for path in paths):
        return None
    paths = [f"hf://datasets/{path}" if _HUB_NAME.fullmatch(str(path)) else path for path in paths]
    flag = "--eval_data_path" if name in ("test_datasets", "eval_dataset") else "--data_path"
    return f"write {flag} {','.join(map(str, paths))}; the form of records is found (--data_format names it)"
