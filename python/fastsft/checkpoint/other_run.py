"""Why a checkpoint is not one of this run, in words."""

from __future__ import annotations

from typing import Any

_OPTIM = {"adamw": "adamw_torch"}  # of an optimizer's name in the core, where it is another


def difference(name: str, old: Any, new: Any) -> str:
    """The difference in the part `name` of fastsft_state.json, and the value to resume with."""
    match name:
        case "unit_hashes":
            return (
                "is of another model: names or shapes of its parameters differ; resume with the model that "
                "it was begun with"
            )
        case "adapters":
            return (
                "was trained with other adapters, without, or with another --q_lora; resume with the LoRA "
                "settings of its begin"
            )
        case "base_weights":
            return (
                "was trained over a base model with other weights, and its adapters fit those alone; resume "
                "with the model that it was begun with"
            )
        case "optimizer":
            return (
                f"holds the state of {old}, the run has {new}; resume with --optim {_OPTIM.get(old, old)}, "
                "or train from its weights with --model_name_or_path"
            )
        case "tokenizer":
            return "was trained with another tokenizer; resume with that one"
        case "labelling":
            return f"was trained on other labels ({_changed(old, new)}); resume with the old settings"
        case "num_conversations":
            return f"was trained on {old:,} conversations, now there are {new:,}; resume with the old data"
        case "data_hash":
            return (
                f"was trained on other data: texts, order or labels of the conversations differ (checksum "
                f"{old}, now {new}); resume with the old data"
            )
    return f"was trained with --{name} {old}, now it is {new}; resume with --{name} {old}"


def _changed(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The settings that differ: `template was vicuna, now qwen`."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {old.get(name)}, now {new.get(name)}" for name in names)
