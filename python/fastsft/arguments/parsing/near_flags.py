"""Message about an unknown flag: the nearest known one where one is near, or why there is none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_NEAR = 0.75  # of difflib's ratio: --conv_template is near --template, --lora_r is not near --local_rank
_LORA = re.compile(r"(^|_)q?lora(_|$)")


def near_flag(name: str, known: Iterable[str]) -> str | None:
    """The known flag whose name is nearest, all without dashes in front; None when none is near."""
    found = difflib.get_close_matches(name.replace("-", "_"), list(known), 1, _NEAR)
    return found[0] if found else None


def hints(flags: Sequence[str], known: Iterable[str]) -> list[str]:
    """A hint for each of `flags`, as they were written; `known` with two dashes in front."""
    names = [flag.lstrip("-") for flag in known if flag.startswith("--")]
    lora = [flag for flag in flags if _LORA.search(_name(flag))]
    said = [about_lora(lora)] if lora else []
    for flag in flags:
        if flag in lora:
            continue
        near = near_flag(_name(flag), names)
        said.append(
            f"{flag}: the nearest known flag is --{near}"
            if near
            else f"{flag}: no known flag is near it (fastsft args lists all)"
        )
    return said


def about_lora(flags: Sequence[str]) -> str:
    """Why there are no such flags, and the way out."""
    return (
        f"{', '.join(flags)}: LoRA is not in yet, fastsft trains all weights; leave LoRA's flags out, or "
        "train the adapter with FastChat's fastchat.train.train_lora"
    )


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")
