"""The architectures that fastsft trains, checked before anything else is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.runtime.terminal_text import one_line

_DEFAULT = "facebook/opt-125m"  # of FastChat's ModelArguments


def is_native(config: Mapping[str, Any]) -> bool:
    """True for a model_type that the native engine computes."""
    from fastsft import _C

    return config.get("model_type") in _C.model_families()


def is_known_to_library(config: Mapping[str, Any]) -> bool:
    """True for a model_type of which the installed transformers has a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def check_family(config: Mapping[str, Any], directory: Path) -> None:
    """ValueError with the path and the way out for a model_type that fastsft does not train."""
    from fastsft import _C

    family, known = config.get("model_type"), list(_C.model_families())
    if family not in known:
        got = "no model_type" if family is None else f'unknown model family "{one_line(str(family))[:60]}"'
        raise ValueError(
            f"{directory / 'config.json'}: {got}; known: {', '.join(sorted(known))}. Name a model of one of "
            "these with --model_name_or_path; others need another tool"
        )


def refuse_default(name: str) -> None:
    """ValueError for the default of --model_name_or_path, which no flag has replaced."""
    from fastsft import _C

    if name == _DEFAULT and not Path(_DEFAULT).is_dir():
        raise ValueError(
            f"--model_name_or_path: expected a model of {', '.join(sorted(_C.model_families()))}; got "
            f"{_DEFAULT}, FastChat's default, which is an OPT"
        )
