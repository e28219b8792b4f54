"""Words of single families that transformers 4 and 5 do not share, by model type."""

from __future__ import annotations

from dataclasses import dataclass

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
