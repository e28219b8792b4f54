"""Translates RoPE settings between transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters).

transformers 4 ignores rope_parameters. transformers 5 also reads the older keys: if rope_scaling is not
empty, it replaces rope_parameters or, if these have settings by layer kind, full attention's settings.
Therefore, a saved rope_scaling repeats all of rope_parameters except theta and the rotated part. The tables
at the top list families with other keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastsft.runtime.versions import library_major

WHOLE, LOCAL = "full_attention", "sliding_attention"  # layer kinds in rope_parameters
PARAMETERS, SCALING = "rope_parameters", "rope_scaling"
_THETA, _PART, _ORIGINAL = "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"
_TYPES = ("rope_type", "type")
Rope = dict[str, Any]


@dataclass(frozen=True)
class RopeWords:
    """A family's RoPE keys in transformers 4.

    theta: key of theta.
    part: key of a head's rotated part.
    by_kind: True if rope_parameters has separate settings for WHOLE and LOCAL layers.
    local_theta: key of theta for LOCAL layers.
    is_shared: True if transformers 4 uses WHOLE's theta for LOCAL layers.
    is_scaled: True if transformers 4 uses WHOLE's scaling for LOCAL layers, too.
    thetas: transformers 5 defaults for WHOLE and LOCAL layers.
    """

    theta: str = "rope_theta"
    part: str = "partial_rotary_factor"
    by_kind: bool = False
    local_theta: str = ""
    is_shared: bool = False
    is_scaled: bool = False
    thetas: tuple[float, float] = (1e4, 1e4)


_NEOX = RopeWords(theta="rotary_emb_base", part="rotary_pct")
_GEMMA = RopeWords(by_kind=True, local_theta="rope_local_base_freq", thetas=(1e6, 1e4))
ROPE = {
    "gpt_neox": _NEOX,
    "gpt_neox_japanese": _NEOX,
    "gemma3_text": _GEMMA,
    "gemma3n_text": _GEMMA,
    # transformers 5.24 reads the older rope_theta for WHOLE layers only.
    "olmo3": RopeWords(by_kind=True, is_shared=True, thetas=(5e5, 5e5)),
    # transformers 4.57 has local_rope_theta, and rotates all layers by global_rope_theta.
    "modernbert-decoder": RopeWords(
        theta="global_rope_theta", local_theta="local_rope_theta", by_kind=True, is_shared=True,
        is_scaled=True, thetas=(160_000.0, 10_000.0),
    ),
}  # fmt: skip
PLAIN = RopeWords()

# Families whose rope_scaling must have exactly these keys in transformers 4.
EXACT_SCALING = {
    "olmo": ("type", "factor"),
    "olmo2": ("type", "factor"),
    "phi3": ("type", "short_factor", "long_factor"),
    "phi4_multimodal": ("type", "short_factor", "long_factor"),
}

# Families with a default scaling. A null in the file means no scaling in transformers 4, and the default
# scaling in transformers 5.
SCALED = {"apertus", "gpt_oss"}

# Families whose scaling transformers 4 ignores.
UNSCALED = {"nemotron", "recurrent_gemma"}

# Families in which longrope's original positions have a single key.
OWN_ORIGINAL = {"phi3", "phi4_multimodal", "phimoe"}

# Default thetas in transformers 4 and 5, for families in which they differ.
DEFAULT_THETA = {
    "cohere": (10_000.0, 500_000.0),
    "falcon_h1": (100_000.0, 10_000.0),
    "olmo3": (10_000.0, 500_000.0),
    "persimmon": (25_000.0, 10_000.0),
}

# Keys with lists of layer kinds whose names differ in transformers 4; transformers 5 accepts both names.
LAYER_KINDS = {
    "granitemoehybrid": "layer_types",
    "zamba": "layers_block_type",
    "zamba2": "layers_block_type",
}
OLDER_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}

# Settings with two keys; a saved file has both.
TWO_NAMES = {"qwen3_moe": (("num_experts", "num_local_experts"),)}

# The two-sided window's key and default, and the one-sided window's key. transformers 4 writes the
# one-sided window, but reads half the two-sided window. transformers 5 reads the one-sided window if it is
# there.
WINDOWS = {"modernbert-decoder": ("local_attention", 128, "sliding_window")}


class NoOlderWords(ValueError):
    """Error for RoPE settings that transformers 4 keys cannot express."""


def words_of(config: Mapping[str, Any]) -> RopeWords:
    """Return the RoPE keys that `config`'s family has in transformers 4."""
    return ROPE.get(str(config.get("model_type")), PLAIN)


def has_rope(config: Mapping[str, Any]) -> bool:
    """Return True if `config` has RoPE settings."""
    words = words_of(config)
    return any(config.get(name) is not None for name in (PARAMETERS, SCALING, words.theta, words.part))


def older_words(config: Mapping[str, Any]) -> Rope:
    """Translate `config`'s rope_parameters into transformers 4 keys.

    NoOlderWords if this is impossible.
    """
    words, rope = words_of(config), config[PARAMETERS]
    if words.by_kind:
        whole, local = rope_by_kind(config)
        return _older_by_kind(config, words, whole, local)
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise NoOlderWords(f"{PARAMETERS} has settings by type of layer")
    return _older(config, words, rope)


def newer_words(config: Mapping[str, Any]) -> Rope:
    """Translate older keys in `config` that transformers 4 and 5 read differently; most families have none.

    The result means the same in both releases as `config` does in the installed release, with which the model
    was computed.
    """
    words, kind, is_newer = words_of(config), str(config.get("model_type")), library_major() > 4
    newer: Rope = {}
    if kind in DEFAULT_THETA and config.get(words.theta) is None:
        newer[words.theta] = DEFAULT_THETA[kind][is_newer]
    if kind in SCALED and SCALING in config and config[SCALING] is None and not is_newer:
        original = {"rope_type": "default", _THETA: config.get(words.theta)}
        return {PARAMETERS: {name: value for name, value in original.items() if value is not None}}
    if not words.is_shared:
        return newer
    theta = config.get(words.theta, newer.get(words.theta, words.thetas[0]))
    whole = {"rope_type": "default", **(config.get(SCALING) or {}), _THETA: theta}
    local = {**(whole if words.is_scaled else {"rope_type": "default"}), _THETA: theta}
    if is_newer:
        local[_THETA] = config.get(words.local_theta, words.thetas[1])
    return {**newer, PARAMETERS: {WHOLE: whole, LOCAL: local}}


def rope_by_kind(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """Return rope_parameters for WHOLE and LOCAL layers, completed with transformers 5 defaults.

    NoOlderWords for other layer kinds.
    """
    rope, words = config[PARAMETERS], words_of(config)
    thetas = (
        config.get(words.theta, words.thetas[0]),
        config.get(words.local_theta, words.thetas[1]),
    )
    if others := rope.keys() - {WHOLE, LOCAL}:
        raise NoOlderWords(f"{PARAMETERS} has {sorted(others)[0]!a}, expected {WHOLE} and {LOCAL}")
    if not all(isinstance(settings, Mapping | None) for settings in rope.values()):
        raise NoOlderWords(f"{PARAMETERS} has no settings for {WHOLE} and {LOCAL}")
    whole, local = ({"rope_type": "default", **(rope.get(kind) or {})} for kind in (WHOLE, LOCAL))
    return {_THETA: thetas[0], **whole}, {_THETA: thetas[1], **local}


def check_scaled(config: Mapping[str, Any]) -> None:
    """Raise NoOlderWords if `config` has a rope_scaling that transformers 4 would ignore."""
    scaling = config.get(SCALING)
    if (
        config.get("model_type") in UNSCALED
        and isinstance(scaling, Mapping)
        and kind_of(scaling) != "default"
    ):
        raise NoOlderWords(f"{config['model_type']} has {SCALING} of type {kind_of(scaling)}")


def _older_by_kind(config: Mapping[str, Any], words: RopeWords, whole: Rope, local: Rope) -> Rope:
    theta = local[_THETA]
    expected = {**(whole if words.is_scaled else {"rope_type": "default"}), _THETA: theta}
    if _normalized(local) != _normalized(expected) or (words.is_shared and theta != whole[_THETA]):
        raise NoOlderWords(f"{PARAMETERS} has {LOCAL} {local} next to {WHOLE} {whole}")
    older = _older(config, words, whole)
    return older | ({words.local_theta: theta} if words.local_theta else {})


def _normalized(rope: Rope) -> Rope:
    """Return `rope` with "rope_type" instead of "type", and without settings that have no effect."""
    kept = {name: value for name, value in rope.items() if name != "type" and value is not None}
    part = kept.pop(_PART, 1.0)
    return {**kept, "rope_type": kind_of(rope), _PART: part}


def _older(config: Mapping[str, Any], words: RopeWords, rope: Mapping[str, Any]) -> Rope:
    settings = {words.theta: rope.get(_THETA), words.part: rope.get(_PART)}
    given = {name: value for name, value in settings.items() if value is not None}
    kind, scaling = str(config.get("model_type")), scaling_of(rope)
    if scaling is not None and (keys := EXACT_SCALING.get(kind)):
        scaling = _with_exact_keys(config, scaling, keys)
    return {**given, SCALING: scaling}


def scaling_of(rope: Mapping[str, Any]) -> Rope | None:
    """Return rope_scaling for transformers 4, from one layer kind's rope_parameters; else None."""
    scaling = {name: value for name, value in rope.items() if name not in (_THETA, _PART)}
    others = scaling.keys() - {*_TYPES, _ORIGINAL}
    return None if kind_of(scaling) == "default" and not others else scaling


def _with_exact_keys(config: Mapping[str, Any], scaling: Rope, keys: tuple[str, ...]) -> Rope:
    """Return `scaling` with only the type and `keys`.

    Return it unchanged if a setting would get lost, or if a key is missing.
    """
    exact = {"type": kind_of(scaling), **{key: scaling[key] for key in keys if key in scaling}}
    if "factor" in keys and "factor" in exact:
        exact["factor"] = float(exact["factor"])  # transformers 4 refuses integers
    others, original = scaling.keys() - {*keys, *_TYPES}, config.get(_ORIGINAL)
    if original and scaling.get(_ORIGINAL) == original:
        others -= {_ORIGINAL}
        if scaling.get("factor") == config.get("max_position_embeddings", 0) / original:
            others -= {"factor"}
    return scaling if others or exact.keys() != {*keys} else exact


def kind_of(scaling: Mapping[str, Any]) -> str:
    """Return the scaling type: default, linear, yarn and so on."""
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def with_original(config: dict[str, Any], major: int) -> dict[str, Any]:
    """Write a longrope's original positions and attention factor explicitly, so that both releases agree.

    A configuration that both releases read alike is returned unchanged. major: the major version
    with which the model was trained.
    """
    key = PARAMETERS if config.get(PARAMETERS) else SCALING
    rope = config.get(key)
    if not isinstance(rope, Mapping) or config.get("model_type") in OWN_ORIGINAL:
        return config
    if key == PARAMETERS and words_of(config).by_kind:
        explicit = {kind: _explicit(config, settings, major) for kind, settings in rope.items()}
        changed = (settings for kind, settings in explicit.items() if settings is not rope[kind])
        original = next((settings[_ORIGINAL] for settings in changed), None)
    else:
        explicit = _explicit(config, rope, major)
        original = None if explicit is rope else explicit[_ORIGINAL]
    return config if original is None else {**config, _ORIGINAL: original, key: explicit}


def _explicit(config: Mapping[str, Any], scaling: Any, major: int) -> Any:
    """Return longrope settings that both releases read alike; `scaling` itself if they already do."""
    if not isinstance(scaling, Mapping) or kind_of(scaling) != "longrope":
        return scaling
    readings = [_read_longrope(config, scaling, release) for release in (4, 5)]
    trained = readings[major > 4]
    if trained is None or readings[0] == readings[1]:
        return scaling
    return {**scaling, _ORIGINAL: trained[0], "attention_factor": trained[1]}


def _read_longrope(
    config: Mapping[str, Any], scaling: Mapping[str, Any], major: int
) -> tuple[int, float] | None:
    """Return the original positions and the attention factor that a release reads; None if it cannot.

    Source: transformers' _compute_longrope_parameters.
    """
    positions, above = config.get("max_position_embeddings"), config.get(_ORIGINAL)
    inner = scaling.get(_ORIGINAL) if major > 4 else None
    original, factor = above or inner or positions, scaling.get("factor")
    given = scaling.get("attention_factor")
    numbers = [value for value in (positions, original, factor, given) if value is not None]
    if original is None or not all(type(value) in (int, float) for value in numbers) or original <= 1:
        return None
    if (factor is None and major > 4) or (above and major == 4):
        factor = positions / original if positions else None
    if given is not None:
        return original, given
    if factor is None:
        return None
    return original, 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def check_agree(config: Mapping[str, Any], where: str = "config.json") -> None:
    """Raise ValueError if rope_parameters and the older keys contradict each other."""
    rope, scaling, words = config.get(PARAMETERS), config.get(SCALING), words_of(config)
    newer = rope.get(WHOLE) if words.by_kind and isinstance(rope, Mapping) else rope
    if not isinstance(newer, Mapping) or not newer:
        return
    old = {words.theta: config.get(words.theta), words.part: config.get(words.part)}
    new = {words.theta: newer.get(_THETA), words.part: newer.get(_PART)}
    if isinstance(scaling, Mapping) and scaling:
        old |= {**scaling, "rope_type": kind_of(scaling)}
        new |= {**newer, "rope_type": kind_of(newer)}
    for name in sorted(old.keys() & new.keys() - {"type"}):
        if None not in (old[name], new[name]) and old[name] != new[name]:
            raise ValueError(
                f"{where}: {PARAMETERS} has {name} {new[name]!a}, and the words of transformers 4 "
                f"next to it say {old[name]!a}; expected the same, of which releases read one or the "
                "other: change both, or remove one"
            )


def set_rope(config: dict[str, Any], name: str, value: object) -> None:
    """Set a key of `config`, and remove an older or newer key for the same RoPE setting.

    If a script sets rope_scaling, theta and the rotated part of rope_parameters stay, as in transformers 5.
    """
    words, rope = words_of(config), config.get(PARAMETERS)
    if name == PARAMETERS:
        given = value if isinstance(value, Mapping) else {}
        given = given.get(WHOLE, given) if words.by_kind else given
        inner = {SCALING: SCALING, words.theta: _THETA, words.part: _PART, words.local_theta: _THETA}
        for older, newer in inner.items():
            if older in config and (older == SCALING or newer in given):
                dict.__delitem__(config, older)
    elif name in (words.theta, words.part, SCALING) and isinstance(rope, Mapping) and rope:
        try:
            translated = older_words(config)
        except NoOlderWords:
            translated = {}
        if translated:
            dict.__delitem__(config, PARAMETERS)
            dict.update(config, translated)
    dict.__setitem__(config, name, value)
