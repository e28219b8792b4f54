"""Gemma 2's bound of attention scores, which some attentions of transformers leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.runtime.messages import warn_once

DEFAULT_ATTENTION = "sdpa"  # of a model that transformers loads without attn_implementation
CAP = "attn_logit_softcapping"
_WITHOUT_CAP = ("sdpa",)
_DEFAULT_CAP = 50.0


def as_computed(config: Mapping[str, Any], attention: str) -> dict[str, Any]:
    """`config` as transformers computes it with the implementation `attention`.

    torch's scaled dot product has no bound of scores: transformers' sdpa leaves Gemma 2's out, and eager,
    flash and flex attention have it.
    """
    return {**config, CAP: None} if _leaves_out(config, attention) else dict(config)


def tell_left_out(config: Mapping[str, Any], attention: str, *, trains: bool = True) -> None:
    """A line where `as_computed` leaves something out; for those who compute. trains: how to keep it, too."""
    if _leaves_out(config, attention):
        way = (
            '; give the Trainer a model that was loaded with attn_implementation="eager" to train with it'
            if trains
            else ""
        )
        warn_once(
            f"{CAP} is left out, as by transformers' {attention} attention, with which FastChat trains{way}"
        )


def _leaves_out(config: Mapping[str, Any], attention: str) -> bool:
    caps = config.get("model_type") == "gemma2" and config.get(CAP, _DEFAULT_CAP) is not None
    return caps and attention in _WITHOUT_CAP
