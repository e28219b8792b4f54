"""Finds native families' settings that transformers supports, but the native engine does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ROPE = ("rope_scaling", "rope_parameters")
_NATIVE_ROPE = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
_ORIGINAL = "original_max_position_embeddings"
_OF_GEMMA3 = ("attn_logit_softcapping", "use_bidirectional_attention")
_DEFAULT_ACTIVATION = ("hidden_act", "silu")
_ACTIVATIONS = dict.fromkeys(("gemma2", "gemma3_text"), ("hidden_activation", "gelu_pytorch_tanh"))
# In addition to attention_dropout, which every family has.
_DROPOUTS = {"phi3": ("resid_pdrop", "embd_pdrop")}
_ONE_WINDOW = ("mistral", "phi3")  # families with the same sliding_window in all layers
# Settings of mixtures of experts that have one native value: it, and what any other value makes.
_OF_MIXTURES: dict[str, dict[str, tuple[object, str]]] = {
    "qwen3_moe": {
        "decoder_sparse_step": (1, "layers without experts, which the native engine lacks"),
        "mlp_only_layers": ([], "layers without experts, which the native engine lacks"),
        "output_router_logits": (False, "a loss of the routers, which the native engine lacks"),
    },
    "mixtral": {
        "router_jitter_noise": (0.0, "noise before the routers, which the native engine lacks"),
        "output_router_logits": (False, "a loss of the routers, which the native engine lacks"),
    },
}


def why_not_native(config: Mapping[str, Any]) -> str | None:
    """Describe a native family's settings that transformers supports, and the native engine does not.

    None if the native engine supports all settings. Also None if the configuration is wrong for both engines,
    because the native engine then raises the error.
    """
    for name, value in find_dropouts(config).items():
        return f"{name} {value}, the native engine has no dropout"
    if _is_accepted(config):
        return None
    reasons = {name: reason for name, reason in _unsupported_settings(config).items() if reason}
    # Partial rotation needs fewer RoPE factors, and the native engine would reject their number.
    ignored = {*reasons, *(_ROPE if "partial_rotary_factor" in reasons else ())}
    rest = {name: value for name, value in config.items() if name not in ignored}
    return "; ".join(reasons.values()) if reasons and _is_accepted(rest) else None


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Return True for a native family with experts in place of each layer's MLP."""
    return config.get("model_type") in _OF_MIXTURES


def activation_setting(model_type: str) -> tuple[str, str]:
    """Return the name of a native family's activation setting, and the supported value."""
    return _ACTIVATIONS.get(model_type, _DEFAULT_ACTIVATION)


def _unsupported_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return fields that transformers supports, with the reason why the native engine does not.

    The reason is "" if the native engine supports the value.
    """
    reasons = {name: _why_not_rope(name, config) for name in _ROPE}
    field, native = activation_setting(str(config.get("model_type")))
    activation = config.get(field)
    if isinstance(activation, str) and activation != native and activation in _library_names()[0]:
        reasons[field] = f"{field} {activation}, the native engine has {native}"
    if config.get("model_type") == "gemma3_text":
        reasons |= {name: f"{name}, which the native engine lacks" for name in _OF_GEMMA3 if config.get(name)}
    if config.get("model_type") in _ONE_WINDOW and config.get("layer_types") is not None:
        reasons["layer_types"] = (
            f"layer_types, which the native engine does not read for {config['model_type']}"
        )
    for name, (value, reason) in _OF_MIXTURES.get(str(config.get("model_type")), {}).items():
        if config.get(name) not in (None, value):
            reasons[name] = f"{name} {config[name]}, {reason}"
    if config.get("model_type") == "phi3":
        reasons["partial_rotary_factor"] = _why_not_partial_rotation(config)
    return reasons


def _why_not_rope(name: str, config: Mapping[str, Any]) -> str:
    settings = config.get(name)
    if not isinstance(settings, Mapping):
        return ""
    kind = settings.get("rope_type", settings.get("type"))
    own = settings.get(_ORIGINAL)
    if kind == "longrope" and own is not None and own != config.get(_ORIGINAL):
        return f"{name} of type longrope with {_ORIGINAL} of its own, which the native engine does not read"
    # If a setting of a native type is wrong, it is wrong for transformers, too.
    if not isinstance(kind, str) or kind in _NATIVE_ROPE or kind not in _library_names()[1]:
        return ""
    return f"{name} of type {kind}, which the native engine lacks"


def _why_not_partial_rotation(config: Mapping[str, Any]) -> str:
    """Return the reason against a partial_rotary_factor, in `config` or in its rope_parameters; else ""."""
    inner = config.get("rope_parameters")
    levels = [config, inner] if isinstance(inner, Mapping) else [config]
    for value in (level.get("partial_rotary_factor") for level in levels):
        if isinstance(value, int | float) and 0 < value < 1:
            return f"partial_rotary_factor {value}, the native engine rotates whole heads"
    return ""


def _library_names() -> tuple[set[str], set[str]]:
    """Return transformers' activation names and rope types; empty sets if it is not installed."""
    try:
        from transformers.activations import ACT2FN
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    except ImportError:
        return set(), set()
    return set(ACT2FN), set(ROPE_INIT_FUNCTIONS)


def _is_accepted(config: Mapping[str, Any]) -> bool:
    from fastsft import _C

    try:
        _C.conversation_cost(json.dumps(config))
    except ValueError:
        return False
    return True


def find_dropouts(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the dropout settings in `config` that are above 0, by name."""
    names = ("attention_dropout", *_DROPOUTS.get(str(config.get("model_type")), ()))
    return {name: config[name] for name in names if config.get(name)}


def check_dropout(config: Mapping[str, Any], where: str, caller: str) -> None:
    """Raise ValueError for dropout settings above 0, because the native engine has no dropout."""
    for name, value in find_dropouts(config).items():
        raise ValueError(
            f"{caller}: {where}: {name} is {value}, a dropout of training; the native engine trains without; "
            "set it to 0.0, or train with --engine generic"
        )
