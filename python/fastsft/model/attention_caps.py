"""Gemma 2's bound of attention scores, which some attentions of transformers leave out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
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
    if not _leaves_out(config, attention):
        return
    version = _library_with_cap()
    installed = f"; transformers {version}, which is installed, computes with it (eager attention)"
    generic = "--engine generic trains with it, as does " if version else ""
    given = 'a model that was loaded with attn_implementation="eager" and given to the Trainer'
    way = f"; {generic}{given}{'' if version else ' is trained with it'}" if trains else ""
    warn_once(
        f"{CAP} is left out, as by the {attention} attention of transformers 4, with which FastChat trains"
        f"{installed if version else ''}{way}"
    )


@cache
def _library_with_cap() -> str | None:
    """The version of the installed transformers where its default attention for Gemma 2 has the bound.

    That is where Gemma 2 is loaded with eager attention because its classes refuse sdpa. Nothing is imported.
    """
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).parent / "models" / "gemma2" / "modeling_gemma2.py"
    if not source.is_file() or "_supports_sdpa = False" not in source.read_text(encoding="utf-8"):
        return None
    return importlib.metadata.version("transformers")


def _leaves_out(config: Mapping[str, Any], attention: str) -> bool:
    caps = config.get("model_type") == "gemma2" and config.get(CAP, _DEFAULT_CAP) is not None
    return caps and attention in _WITHOUT_CAP
