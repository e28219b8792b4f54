"""The configuration of a model: config.json, mutable, read from a file, a directory or the hub."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.model.config import check_config_types
from fastsft.model.source import config_directory
from fastsft.model.words.both import in_both_words
from fastsft.model.words.families import WHOLE
from fastsft.model.words.rope import PARAMETERS, SCALING, check_agree, set_rope
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import file_inside, read_json_object


class ModelConfig(dict[str, Any]):
    """config.json, mutable; keys are attributes too. What is here when the model is saved is written."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config.json has no key {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __setitem__(self, name: str, value: object) -> None:
        """Set a key; of two words for one rotation the last one counts, and the other goes."""
        set_rope(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """A plain copy."""
        return dict(self)

    def to_json_string(self) -> str:
        """As JSON, for trackers."""
        return json.dumps(self, indent=2, sort_keys=True) + "\n"

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write config.json, in the words of transformers 4 and 5, into `save_directory`; on calling ranks.

        What a save of the model has said there about weights and tokenizer stays.
        """
        path = Path(save_directory) / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        saved = read_json_object(path) if path.is_file() else {}
        kept = {name: saved[name] for name in _OF_SAVED_MODEL if name in saved}
        replace_file(path, ModelConfig(in_both_words({**self, **kept})).to_json_string())


_OF_SAVED_MODEL = ("torch_dtype", "dtype", "bos_token_id", "eos_token_id", "pad_token_id", "architectures")


def _read_config(path: Path) -> ModelConfig:
    content = read_json_object(path)
    check_config_types(content, path)
    check_agree(content, str(path))
    return ModelConfig(content)


def config_of_directory(directory: Path) -> ModelConfig:
    path = file_inside(directory, "config.json")
    if path is None:
        hint = _adapter_hint(directory)
        raise ValueError(f"{directory}: expected a Hugging Face model directory, found no config.json{hint}")
    return _read_config(path)


def _adapter_hint(directory: Path) -> str:
    """The end of a message where `directory` is an adapter; empty for others."""
    if not (directory / "adapter_config.json").is_file():
        return ""
    return (
        "; it has a LoRA adapter: name its base model, and train on with --lora_weight_path "
        f"{directory}, or make one model of the two with fastsft merge"
    )


def model_config(name: str) -> ModelConfig:
    """The configuration alone: of a JSON file, a directory or a hub model. ValueError when there is none."""
    path = Path(name).expanduser()
    if path.is_file():
        return _read_config(path)
    return config_of_directory(config_directory(name))


def stretch_positions(config: ModelConfig, model_max_length: int, *, in_table: bool = False) -> str | None:
    """Scale rope linearly when examples are longer than the model's positions; a line about it, or None.

    in_table: positions are looked up, and stay as they are.
    Factor: ceil(model_max_length / max_position_embeddings). Rule: docs/spec/fastchat_labels.md, section 7.1.
    ValueError for Phi-3, whose configuration takes no linear scaling.
    """
    positions = config.get("max_position_embeddings")
    if not positions or model_max_length <= positions:
        return None
    if in_table:
        return (
            f"--model_max_length {model_max_length} is above the model's {positions} positions, which are "
            "rows of a table and cannot be stretched: a longer conversation ends the run"
        )
    if config.get("model_type") == "phi3":
        raise ValueError(
            f"--model_max_length {model_max_length} is above the model's {positions} positions; stretched as "
            "FastChat does they would have linear scaling, and transformers opens no Phi-3 model with that: "
            f"use --model_max_length {positions}"
        )
    newer = config.get(PARAMETERS)
    before = newer or config.get(SCALING)
    factor = float(math.ceil(model_max_length / positions))
    scaling: dict[str, Any] = {"type": "linear", "factor": factor}
    key = PARAMETERS if newer else SCALING
    if newer:
        scaling = _stretched(newer, factor)
    config[key] = scaling
    replaced = f", in place of {json.dumps(before)}" if before else ""
    return (
        f"--model_max_length {model_max_length} is above the model's {positions} positions: they are "
        f"stretched, as FastChat does ({key}: {json.dumps(scaling)}{replaced}); "
        f"--model_max_length {positions} leaves the model's positions as they are"
    )


def _stretched(rope: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """rope_parameters with linear scaling: of the layers that see all tokens, where kinds have their own."""
    linear = {"rope_type": "linear", "factor": factor}
    if isinstance(rope.get(WHOLE), Mapping):
        return {**rope, WHOLE: {**rope[WHOLE], **linear}}
    return {**rope, **linear}
