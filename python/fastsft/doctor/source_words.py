"""The release of transformers that wrote a config.json, and words that the installed one reads past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.model.config_words import missing_words
from fastsft.model.rope_words import PARAMETERS
from fastsft.runtime.terminal import one_line
from fastsft.runtime.versions import library_major, transformers_version


def written_by(config: Mapping[str, Any]) -> str:
    """`written by transformers 5.24.0, 4.57.6 is installed`; empty where the file does not say."""
    named, here = config.get("transformers_version"), transformers_version()
    if not isinstance(named, str) or not named:
        return ""
    text = f"written by transformers {one_line(named)[:20]}"
    return text if here in (None, named) else f"{text}, {here} is installed"


def words_read_past(config: Mapping[str, Any]) -> str:
    """A line where the installed transformers opens `config` otherwise than fastsft reads it; else empty."""
    here = transformers_version()
    lacking = [name for name in missing_words(config) if name != PARAMETERS]
    if here is None or not lacking or library_major() > 4:
        return ""
    names = ", ".join(lacking[:4])
    return (
        f"config.json lacks words that transformers {here} reads ({names}): transformers opens these files "
        "as another model; fastsft trains it as the file says, and saves it in words of both releases"
    )
