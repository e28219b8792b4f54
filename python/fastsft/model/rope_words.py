"""Words of single families that transformers 4 and 5 do not share, by model type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastsft.runtime.versions import library_major

WHOLE, LOCAL = "full_attention", "sliding_attention"  # kinds of layers in rope_parameters


@dataclass(frozen=True)
class RopeWords:
    """Names of rope settings in transformers 4.

    by_kind: rope_parameters has settings for WHOLE and for LOCAL. local_theta: the base of LOCAL. is_shared:
    transformers 4 rotates LOCAL layers by the base of the others. is_scaled: and scales them as the others.
    thetas: bases of WHOLE and LOCAL layers that transformers 5 takes where a file names none.
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

# Families whose rope_scaling transformers 4 takes with these keys alone.
EXACT_SCALING = {
    "olmo": ("type", "factor"),
    "olmo2": ("type", "factor"),
    "phi3": ("type", "short_factor", "long_factor"),
    "phi4_multimodal": ("type", "short_factor", "long_factor"),
}

# Families with a scaling of their own where a file has none: transformers 4 takes null for none, and 5 not.
SCALED = {"apertus", "gpt_oss"}

# Families whose scaling transformers 4 reads past, or whose class takes none.
UNSCALED = {"nemotron", "recurrent_gemma"}

# Families whose longrope has its original positions in a place of its own.
OWN_ORIGINAL = {"phi3", "phi4_multimodal", "phimoe"}

# Bases that transformers 4 and 5 take where a file names none, of families for which they differ.
DEFAULT_THETA = {
    "cohere": (10_000.0, 500_000.0),
    "falcon_h1": (100_000.0, 10_000.0),
    "olmo3": (10_000.0, 500_000.0),
    "persimmon": (25_000.0, 10_000.0),
}

# Lists of layer kinds that transformers 4 takes with other names; 5 takes both.
LAYER_KINDS = {
    "granitemoehybrid": "layer_types",
    "zamba": "layers_block_type",
    "zamba2": "layers_block_type",
}
OLDER_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}

# Keys with one value and two names: a file has both.
TWO_NAMES = {"qwen3_moe": (("num_experts", "num_local_experts"),)}

# (window to both sides, its default, window to one side): transformers 4 writes the last, and takes half of
# the first whatever a file has for the last; 5 takes the last where a file has it.
WINDOWS = {"modernbert-decoder": ("local_attention", 128, "sliding_window")}


PARAMETERS, SCALING = "rope_parameters", "rope_scaling"
_THETA, _PART, _ORIGINAL = "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"
_TYPES = ("rope_type", "type")
Rope = dict[str, Any]


class NoOlderWords(ValueError):
    """Rotary settings that transformers 4 has no words for."""


def words_of(config: Mapping[str, Any]) -> RopeWords:
    """The names that transformers 4 has for the family of `config`."""
    return ROPE.get(str(config.get("model_type")), PLAIN)


def has_rope(config: Mapping[str, Any]) -> bool:
    """True if `config` says something about a rotation."""
    words = words_of(config)
    return any(config.get(name) is not None for name in (PARAMETERS, SCALING, words.theta, words.part))


def older_words(config: Mapping[str, Any]) -> Rope:
    """Give rope_parameters of `config` the words of transformers 4. NoOlderWords when it has none."""
    words, rope = words_of(config), config[PARAMETERS]
    if words.by_kind:
        whole, local = rope_by_kind(config)
        return _of_kinds(config, words, whole, local)
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise NoOlderWords(f"{PARAMETERS} has settings by type of layer")
    return _of_all(config, words, rope)


def newer_words(config: Mapping[str, Any]) -> Rope:
    """Words for older ones of `config` that transformers 4 and 5 read otherwise; mostly none.

    They say how the installed release reads the older ones, which is how the model was computed.
    """
    words, kind, is_newer = words_of(config), str(config.get("model_type")), library_major() > 4
    found: Rope = {}
    if kind in DEFAULT_THETA and config.get(words.theta) is None:
        found[words.theta] = DEFAULT_THETA[kind][is_newer]
    if kind in SCALED and SCALING in config and config[SCALING] is None and not is_newer:
        original = {"rope_type": "default", _THETA: config.get(words.theta)}
        return {PARAMETERS: {name: value for name, value in original.items() if value is not None}}
    if not words.is_shared:
        return found
    theta = config.get(words.theta, found.get(words.theta, words.thetas[0]))
    whole = {"rope_type": "default", **(config.get(SCALING) or {}), _THETA: theta}
    local = {**(whole if words.is_scaled else {"rope_type": "default"}), _THETA: theta}
    if is_newer:
        local[_THETA] = config.get(words.local_theta, words.thetas[1])
    return {**found, PARAMETERS: {WHOLE: whole, LOCAL: local}}


def rope_by_kind(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """rope_parameters of the layers that see all tokens and of the others, as transformers 5 fills them.

    NoOlderWords for other kinds of layers.
    """
    rope, words = config[PARAMETERS], words_of(config)
    thetas = (
        config.get(words.theta, words.thetas[0]),
        config.get(words.local_theta, words.thetas[1]),
    )
    if others := rope.keys() - {WHOLE, LOCAL}:
        raise NoOlderWords(f"{PARAMETERS} has {sorted(others)[0]!a}, expected {WHOLE} and {LOCAL}")
    if not all(isinstance(each, Mapping | None) for each in rope.values()):
        raise NoOlderWords(f"{PARAMETERS} has no settings for {WHOLE} and {LOCAL}")
    whole, local = ({"rope_type": "default", **(rope.get(kind) or {})} for kind in (WHOLE, LOCAL))
    return {_THETA: thetas[0], **whole}, {_THETA: thetas[1], **local}


def check_scaled(config: Mapping[str, Any]) -> None:
    """NoOlderWords where transformers 4 reads past the rope_scaling of `config`."""
    scaling = config.get(SCALING)
    if (
        config.get("model_type") in UNSCALED
        and isinstance(scaling, Mapping)
        and kind_of(scaling) != "default"
    ):
        raise NoOlderWords(f"{config['model_type']} has {SCALING} of type {kind_of(scaling)}")


def _of_kinds(config: Mapping[str, Any], words: RopeWords, whole: Rope, local: Rope) -> Rope:
    theta = local[_THETA]
    wanted = {**(whole if words.is_scaled else {"rope_type": "default"}), _THETA: theta}
    if _plain(local) != _plain(wanted) or (words.is_shared and theta != whole[_THETA]):
        raise NoOlderWords(f"{PARAMETERS} has {LOCAL} {local} next to {WHOLE} {whole}")
    found = _of_all(config, words, whole)
    return found | ({words.local_theta: theta} if words.local_theta else {})


def _plain(rope: Rope) -> Rope:
    """With the newer name of the type, and without what changes nothing."""
    kept = {name: value for name, value in rope.items() if name != "type" and value is not None}
    part = kept.pop(_PART, 1.0)
    return {**kept, "rope_type": kind_of(rope), _PART: part}


def _of_all(config: Mapping[str, Any], words: RopeWords, rope: Mapping[str, Any]) -> Rope:
    found = {words.theta: rope.get(_THETA), words.part: rope.get(_PART)}
    kept = {name: value for name, value in found.items() if value is not None}
    kind, scaling = str(config.get("model_type")), scaling_of(rope)
    if scaling is not None and (keys := EXACT_SCALING.get(kind)):
        scaling = _exact(config, scaling, keys)
    return {**kept, SCALING: scaling}


def scaling_of(rope: Mapping[str, Any]) -> Rope | None:
    """rope_scaling of transformers 4 for rope_parameters of one kind; None for original positions."""
    scaling = {name: value for name, value in rope.items() if name not in (_THETA, _PART)}
    others = scaling.keys() - {*_TYPES, _ORIGINAL}
    return None if kind_of(scaling) == "default" and not others else scaling


def _exact(config: Mapping[str, Any], scaling: Rope, keys: tuple[str, ...]) -> Rope:
    """`scaling` with the keys that transformers 4 takes, where nothing else is said; else as it is."""
    spelled = {"type": kind_of(scaling), **{key: scaling[key] for key in keys if key in scaling}}
    if "factor" in keys and "factor" in spelled:
        spelled["factor"] = float(spelled["factor"])  # no integer is taken
    said, original = scaling.keys() - {*keys, *_TYPES}, config.get(_ORIGINAL)
    if original and scaling.get(_ORIGINAL) == original:
        said -= {_ORIGINAL}
        said -= (
            {"factor"}
            if scaling.get("factor") == config.get("max_position_embeddings", 0) / original
            else set()
        )
    return scaling if said or spelled.keys() != {*keys} else spelled


def kind_of(scaling: Mapping[str, Any]) -> str:
    """linear, yarn and so on."""
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def with_original(config: dict[str, Any], major: int) -> dict[str, Any]:
    """`config` with original positions and attention factor of longrope where both releases read them.

    They read most files alike; those stay as they are. major: the release that reads `config` as it was
    trained, 4 or 5.
    """
    where = PARAMETERS if config.get(PARAMETERS) else SCALING
    rope = config.get(where)
    if not isinstance(rope, Mapping) or config.get("model_type") in OWN_ORIGINAL:
        return config
    if where == PARAMETERS and words_of(config).by_kind:
        said = {kind: _said(config, each, major) for kind, each in rope.items()}
        above = next((each[_ORIGINAL] for kind, each in said.items() if each is not rope[kind]), None)
    else:
        said = _said(config, rope, major)
        above = None if said is rope else said[_ORIGINAL]
    return config if above is None else {**config, _ORIGINAL: above, where: said}


def _said(config: Mapping[str, Any], scaling: Any, major: int) -> Any:
    """Settings of longrope that both releases read alike; `scaling` itself if they do."""
    if not isinstance(scaling, Mapping) or kind_of(scaling) != "longrope":
        return scaling
    readings = [_reading(config, scaling, each) for each in (4, 5)]
    wanted = readings[major > 4]
    if wanted is None or readings[0] == readings[1]:
        return scaling
    return {**scaling, _ORIGINAL: wanted[0], "attention_factor": wanted[1]}


def _reading(config: Mapping[str, Any], scaling: Mapping[str, Any], major: int) -> tuple[int, float] | None:
    """The original positions and the attention factor that a release of transformers reads; None: neither.

    Source: _compute_longrope_parameters.
    """
    positions, above = config.get("max_position_embeddings"), config.get(_ORIGINAL)
    inner = scaling.get(_ORIGINAL) if major > 4 else None
    original, factor = above or inner or positions, scaling.get("factor")
    given = scaling.get("attention_factor")
    known = [each for each in (positions, original, factor, given) if each is not None]
    if original is None or not all(type(each) in (int, float) for each in known) or original <= 1:
        return None
    if (factor is None and major > 4) or (above and major == 4):
        factor = positions / original if positions else None
    if given is not None:
        return original, given
    if factor is None:
        return None
    return original, 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def check_agree(config: Mapping[str, Any], where: str = "config.json") -> None:
    """ValueError where rope_parameters and older words are both given, and say different things."""
    rope, scaling, words = config.get(PARAMETERS), config.get(SCALING), words_of(config)
    newer = rope.get(WHOLE) if words.by_kind and isinstance(rope, Mapping) else rope
    if not isinstance(newer, Mapping) or not newer:
        return
    said = {words.theta: config.get(words.theta), words.part: config.get(words.part)}
    wanted = {words.theta: newer.get(_THETA), words.part: newer.get(_PART)}
    if isinstance(scaling, Mapping) and scaling:
        said |= {**scaling, "rope_type": kind_of(scaling)}
        wanted |= {**newer, "rope_type": kind_of(newer)}
    for name in sorted(said.keys() & wanted.keys() - {"type"}):
        if None not in (said[name], wanted[name]) and said[name] != wanted[name]:
            raise ValueError(
                f"{where}: {PARAMETERS} has {name} {wanted[name]!a}, and the words of transformers 4 "
                f"next to it say {said[name]!a}; expected the same, of which releases read one or the "
                "other: change both, or remove one"
            )


def set_rope(config: dict[str, Any], name: str, value: object) -> None:
    """Set a key of `config`; of two words for one rotation the last one counts, and the other goes.

    A base and a part in rope_parameters stay when a script sets rope_scaling, as in transformers 5.
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
            older_ones = older_words(config)
        except NoOlderWords:
            older_ones = {}
        if older_ones:
            dict.__delitem__(config, PARAMETERS)
            dict.update(config, older_ones)
    dict.__setitem__(config, name, value)
