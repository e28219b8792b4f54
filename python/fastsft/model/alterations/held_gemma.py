"""Checks of what only Gemma's modules hold: the embedding's scale and the rotation of local layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fastsft.model.alterations.finding import Alteration
from fastsft.model.alterations.held_rope import original_frequencies
from fastsft.model.alterations.tree import EMBEDDING, Tree

_WAY_OUT = "set it back, or train with transformers' Trainer"
_ROUNDING = 2.0**-7  # of what model.to() may have made of it
_LOCAL_BASE = 10000.0  # Gemma3TextConfig's default


def found_of_gemma(tree: Tree, config: dict[str, Any]) -> Iterator[Alteration]:
    """Those that are not what `config` gives."""
    table = next(tree.of(EMBEDDING)).module
    scale, expected = getattr(table, "embed_scale", None), config["hidden_size"] ** 0.5
    if scale is not None and not math.isclose(float(scale), expected, rel_tol=_ROUNDING):
        where = "model.model.embed_tokens.embed_scale"
        yield Alteration(where, f"is {float(scale)}", f"{expected:.6g}", _WAY_OUT)
    for node in tree.of("RotaryEmbedding"):
        if node.path.endswith("rotary_emb_local"):
            yield from _of_local_rope(node.path, node.module, config)


def _of_local_rope(path: str, module: Any, config: dict[str, Any]) -> Iterator[Alteration]:
    held = module.inv_freq.detach().float().cpu()
    base = float(config.get("rope_local_base_freq") or _LOCAL_BASE)
    frequencies = original_frequencies(base, 2 * len(held))
    if not bool(((held - frequencies).abs() <= _ROUNDING * frequencies).all()):
        first = [round(float(value), 6) for value in held[:3]]
        yield Alteration(f"{path}.inv_freq", f"starts {first}", f"rotations of base {base:g}", _WAY_OUT)
