"""Settings of a native family that the native engine does not compute, and transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ROPE = ("rope_scaling", "rope_parameters")
_NATIVE_ROPE = ("default", "linear", "llama3")
_BUILT_FOR = "silu"  # hidden_act of the native families


def why_not_native(config: Mapping[str, Any]) -> str | None:
    """Words for settings of a native family that transformers computes and the native engine does not.

    None where the native engine computes all of it, and where the file is wrong for both: then it is the
    native engine that says what is wrong.
    """
    if config.get("attention_dropout"):
        return f"attention_dropout {config['attention_dropout']}, the native engine has no dropout"
    if _is_taken(config):
        return None
    lacking = {name: words for name, words in _lacking(config).items() if words}
    rest = {name: value for name, value in config.items() if name not in lacking}
    return "; ".join(lacking.values()) if lacking and _is_taken(rest) else None


def _is_taken(config: Mapping[str, Any]) -> bool:
    from fastsft import _C

    try:
        _C.conversation_cost(json.dumps(config))
    except ValueError:
        return False
    return True


def _lacking(config: Mapping[str, Any]) -> dict[str, str]:
    """Fields with settings of transformers that the native families are not built for, and words for them."""
    found = {name: _of_rope(name, config.get(name)) for name in _ROPE}
    activation = config.get("hidden_act")
    if isinstance(activation, str) and activation != _BUILT_FOR and activation in _library_names()[0]:
        found["hidden_act"] = f"hidden_act {activation}, the native engine has {_BUILT_FOR}"
    if config.get("model_type") == "mistral" and config.get("layer_types") is not None:
        found["layer_types"] = "layer_types, which the native engine does not read for Mistral"
    return found


def _of_rope(name: str, settings: object) -> str:
    if not isinstance(settings, Mapping):
        return ""
    kind = settings.get("rope_type", settings.get("type"))
    # What is wrong with settings of a type that is native is wrong anywhere.
    if not isinstance(kind, str) or kind in _NATIVE_ROPE or kind not in _library_names()[1]:
        return ""
    return f"{name} of type {kind}, which the native engine lacks"


def _library_names() -> tuple[set[str], set[str]]:
    """Activations and rope types of the installed transformers; none without it."""
    try:
        from transformers.activations import ACT2FN
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    except ImportError:
        return set(), set()
    return set(ACT2FN), set(ROPE_INIT_FUNCTIONS)
