"""Settings of a native family that the native engine does not compute, and transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastsft.model.alterations.check import check_library
from fastsft.originals.places import Places

_ROPE = ("rope_scaling", "rope_parameters")
_NATIVE_ROPE = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
_ORIGINAL = "original_max_position_embeddings"
_OF_GEMMA3 = ("attn_logit_softcapping", "use_bidirectional_attention")
_BUILT_FOR = ("hidden_act", "silu")  # of the native families, unless below
_ACTIVATIONS = dict.fromkeys(("gemma2", "gemma3_text"), ("hidden_activation", "gelu_pytorch_tanh"))
_DROPOUTS = {"phi3": ("resid_pdrop", "embd_pdrop")}  # next to attention_dropout, which all have
_ONE_WINDOW = ("mistral", "phi3")  # families that have sliding_window for all layers


def why_not_native(config: Mapping[str, Any]) -> str | None:
    """Words for settings of a native family that transformers computes and the native engine does not.

    None where the native engine computes all of it, and where the file is wrong for both: then it is the
    native engine that says what is wrong.
    """
    for name, value in dropouts_of(config).items():
        return f"{name} {value}, the native engine has no dropout"
    if _is_taken(config):
        return None
    lacking = {name: words for name, words in _lacking(config).items() if words}
    # Factors of a rotation in part are fewer: the rest is judged without them.
    besides = _ROPE if "partial_rotary_factor" in lacking else ()
    rest = {name: value for name, value in config.items() if name not in lacking and name not in besides}
    return "; ".join(lacking.values()) if lacking and _is_taken(rest) else None


def dropouts_of(config: Mapping[str, Any]) -> dict[str, float]:
    """The settings of `config` by which transformers drops values in training, where they are above 0."""
    names = ("attention_dropout", *_DROPOUTS.get(str(config.get("model_type")), ()))
    return {name: config[name] for name in names if config.get(name)}


def _is_taken(config: Mapping[str, Any]) -> bool:
    from fastsft import _C

    try:
        _C.conversation_cost(json.dumps(config))
    except ValueError:
        return False
    return True


def _lacking(config: Mapping[str, Any]) -> dict[str, str]:
    """Fields with settings of transformers that the native families are not built for, and words for them."""
    found = {name: _of_rope(name, config) for name in _ROPE}
    field, native = _ACTIVATIONS.get(str(config.get("model_type")), _BUILT_FOR)
    activation = config.get(field)
    if isinstance(activation, str) and activation != native and activation in _library_names()[0]:
        found[field] = f"{field} {activation}, the native engine has {native}"
    if config.get("model_type") == "gemma3_text":
        found |= {name: f"{name}, which the native engine lacks" for name in _OF_GEMMA3 if config.get(name)}
    if config.get("model_type") in _ONE_WINDOW and config.get("layer_types") is not None:
        found["layer_types"] = (
            f"layer_types, which the native engine does not read for {config['model_type']}"
        )
    if config.get("model_type") == "phi3":
        found["partial_rotary_factor"] = _of_partial_rotation(config)
    return found


def _of_partial_rotation(config: Mapping[str, Any]) -> str:
    """Both spellings: next to rope_scaling, or in rope_parameters."""
    inner = config.get("rope_parameters")
    places = [config, inner] if isinstance(inner, Mapping) else [config]
    for value in (place.get("partial_rotary_factor") for place in places):
        if isinstance(value, int | float) and 0 < value < 1:
            return f"partial_rotary_factor {value}, the native engine rotates whole heads"
    return ""


def _of_rope(name: str, config: Mapping[str, Any]) -> str:
    settings = config.get(name)
    if not isinstance(settings, Mapping):
        return ""
    kind = settings.get("rope_type", settings.get("type"))
    own = settings.get(_ORIGINAL)
    if kind == "longrope" and own is not None and own != config.get(_ORIGINAL):
        return f"{name} of type longrope with {_ORIGINAL} of its own, which the native engine does not read"
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


def check_dropout(config: Mapping[str, Any], where: str, caller: str) -> None:
    """ValueError for dropout of training, which the native engine has none of."""
    for name, value in dropouts_of(config).items():
        raise ValueError(
            f"{caller}: {where}: {name} is {value}, a dropout of training; the native engine trains without; "
            "set it to 0.0, or train with --engine generic"
        )


def check_patches(model_type: str, caller: str) -> Places:
    """ValueError for a torch or transformers that a script has patched; what was looked at."""
    from fastsft import _C

    return check_library(model_type, _C.model_families().get(model_type, ""), caller)
