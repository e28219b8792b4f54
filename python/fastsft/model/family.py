"""The architectures that fastsft trains, checked before anything else is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.model.remote_code import has_model_code
from fastsft.runtime.terminal import one_line

# Of configurations: what else than text a model reads.
_TOWERS = (
    "vision_config",
    "audio_config",
    "audio_encoder_config",
    "speech_config",
    "vision_tower_config",
    "mm_vision_tower",
    "visual",
)
# Vision-text models of which the text decoder is trained: transformers' causal language model of their
# `text_config` computes texts as the whole model does (tests/model/test_vision_text.py).
VISION_TEXT = ("gemma3", "gemma4", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe")
# Families whose configuration class ties the embedding and the head, and has a padding row, where
# config.json says nothing.
_GEMMA = ("gemma2", "gemma3_text")


def ties_embeddings(config: Mapping[str, Any]) -> bool:
    """True where embedding and head are one tensor, by config.json or, for a native family, its default."""
    return bool(config.get("tie_word_embeddings", config.get("model_type") in _GEMMA))


def padding_row(config: Mapping[str, Any]) -> Any:
    """`pad_token_id`; where config.json does not name it, the default of the family."""
    return config.get("pad_token_id", 0 if config.get("model_type") in _GEMMA else None)


def is_native(config: Mapping[str, Any]) -> bool:
    """True for a model_type that the native engine computes."""
    from fastsft import _C

    return config.get("model_type") in _C.model_families()


def is_known_to_library(config: Mapping[str, Any]) -> bool:
    """True for a model_type of which the installed transformers has a causal language model.

    ValueError where transformers is not there.
    """
    _check_installed(config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def check_library(config: Mapping[str, Any]) -> None:
    """ValueError for a vision-text model that the installed transformers does not have."""
    _check_installed(config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    if config.get("model_type") not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise ValueError(
            f"model family {_named(config)}: transformers {_library_version()} does not have it; install a "
            "newer transformers"
        )


def _check_installed(config: Mapping[str, Any]) -> None:
    try:
        import transformers.models.auto.modeling_auto  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"model family {_named(config)} is trained by transformers' own forward and backward, and "
            f"transformers cannot be imported ({error}): pip install transformers"
        ) from None


def check_family(config: Mapping[str, Any], directory: Path) -> None:
    """ValueError with the path and the way out for a model_type that the native engine does not know."""
    from fastsft import _C

    if is_native(config):
        return
    path, known = directory / "config.json", ", ".join(sorted(_C.model_families()))
    if config.get("model_type") is None:
        raise ValueError(f"{path}: no model_type; native: {known}. Name a model directory of transformers")
    if has_model_code(config):
        raise ValueError(
            f"{path}: unknown model family {_named(config)}: its class is code of the directory (auto_map), "
            "which is not run; read it, and give --trust_remote_code True if you trust it"
        )
    if is_known_to_library(config):
        raise ValueError(
            f"{path}: unknown model family {_named(config)} of the native engine, which has {known}; "
            "--engine auto trains it by transformers' own forward and backward"
        )
    raise ValueError(
        f"{path}: unknown model family {_named(config)}: neither native ({known}) nor a causal language "
        f"model of transformers {_library_version()}. Name another model, or try a newer transformers"
    )


def is_vision_text(config: Mapping[str, Any]) -> bool:
    """True for a vision-text model of a family whose text decoder is trained."""
    return config.get("model_type") in VISION_TEXT and isinstance(config.get("text_config"), Mapping)


def check_decoder(config: Mapping[str, Any], where: str) -> None:
    """ValueError for a model that is more than a text decoder: its other half would be trained on nothing."""
    towers = [name for name in _TOWERS if config.get(name)]
    if towers:
        raise ValueError(
            f"{where}: model family {_named(config)} has a part that is not for text ({towers[0]}), and "
            f"fastsft trains the text decoders of directories of {', '.join(VISION_TEXT)}; name one of these,"
            " or train with transformers' Trainer"
        )
    if config.get("is_encoder_decoder"):
        raise ValueError(
            f"{where}: model family {_named(config)} is an encoder-decoder, and fastsft trains decoders "
            "alone; name a causal language model"
        )


def check_floats(config: Mapping[str, Any], directory: Path) -> None:
    """ValueError for a model whose configuration says that its weights are quantised."""
    found = config.get("quantization_config")
    if not found:
        return
    method = found.get("quant_method") if isinstance(found, Mapping) else None
    raise ValueError(
        f"{directory / 'config.json'}: quantization_config ({one_line(str(method or found))[:60]}): its "
        "weights are quantised, and fastsft trains float weights; name the model that it was made of (LoRA "
        "with --q_lora True has it in 4 bits)"
    )


_DROPOUT = re.compile(r"(^|_)(dropout|pdrop|dropout_rate|dropout_prob|drop)$")


def check_dropouts(config: Mapping[str, Any], directory: Path) -> None:
    """ValueError for a share of dropped values that is none: transformers says so in the first step only."""
    for name, value in config.items():
        is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
        if value is not None and not is_share and _DROPOUT.search(name):
            raise ValueError(
                f"{directory / 'config.json'}: {one_line(name)}: expected a number from 0 to 1, got "
                f"{one_line(str(value))[:60]}; correct it (0.0 drops nothing)"
            )


def _named(config: Mapping[str, Any]) -> str:
    return f'"{one_line(str(config.get("model_type")))[:60]}"'


def _library_version() -> str:
    from importlib.metadata import version

    return version("transformers")
