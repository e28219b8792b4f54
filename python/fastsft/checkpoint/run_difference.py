"""Says how the run of a checkpoint differs from the run that resumes it."""

from __future__ import annotations

from typing import Any

_OPTIM = {"adamw": "adamw_torch"}  # an optimizer's name in the core -> value of --optim, if they differ


def difference(name: str, old: Any, new: Any) -> str:
    """Return a phrase about the difference in key `name` of fastsft_state.json, with advice."""
    match name:
        case "unit_hashes":
            return (
                "is of another model: names or shapes of its parameters differ; resume with the model that "
                "it was begun with"
            )
        case "adapters":
            return (
                f"was trained {_adapters(old)}, now the run is {_adapters(new)}{_of_adapters(old, new)}; "
                "resume with the LoRA settings of its begin"
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
            return (
                f"was trained on {old:,} conversations, now there are {new:,}; resume with the old data and "
                "the old --eval_split"
            )
        case "data_hash":
            return (
                f"was trained on other data: texts, order or labels of the conversations differ (checksum "
                f"{old}, now {new}); resume with the old data"
            )
    return f"was trained with --{name} {old}, now it is {new}; resume with --{name} {old}"


def _adapters(facts: dict[str, Any] | None) -> str:
    """Return how a run trains by its facts about adapters."""
    if facts is None:
        return "without adapters"
    ranks = sorted({linear[1] for linear in facts["linears"]})
    base = ", with --q_lora" if "base" in facts else ""
    return f"with {len(facts['linears'])} adapters of rank {', '.join(map(str, ranks))}{base}"


def _of_adapters(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    """Return which facts differ, if the description of both is the same; else ""."""
    if old is None or new is None or _adapters(old) != _adapters(new):
        return ""
    words = {
        "linears": "modules or --lora_alpha",
        "dropout": "--lora_dropout",
        "trained": "modules trained whole",
    }
    return f", with other {', '.join(word for name, word in words.items() if old.get(name) != new.get(name))}"


def _changed(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the differing settings as text, for example `template was vicuna, now qwen`."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {old.get(name)}, now {new.get(name)}" for name in names)
