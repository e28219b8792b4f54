"""Logs as lines of text, for scripts and for people."""

from __future__ import annotations

import textwrap
from typing import Any


def console_line(logs: dict[str, Any]) -> str:
    """A log as transformers 4.x prints it: a dictionary, the loss with four decimals, the epoch with two."""
    places = {"loss": 4, "epoch": 2}
    shown = {
        name: round(value, places[name]) if name in places and value is not None else value
        for name, value in logs.items()
        if name != "total_flos"
    }
    return str(shown)


def readable_line(logs: dict[str, Any], step: int, width: int) -> str:
    """The same for a terminal of `width` columns: four digits that count, wrapped below itself."""
    texts = [f"{name} {_short(name, value)}" for name, value in logs.items() if name != "total_flos"]
    line = f"step {step}: {', '.join(texts)}"
    return textwrap.fill(line, max(width - 1, 20), subsequent_indent="    ", break_long_words=False)


def _short(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if name == "epoch":
        return f"{value:.2f}"
    return f"{value:.4f}" if name.endswith("loss") else f"{value:.4g}"
