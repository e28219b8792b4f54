"""Writes what became of each key: lines for the terminal, and the new file with these lines as comments."""

from __future__ import annotations

import shlex
from pathlib import Path

from fastsft.arguments.imports.draft import Draft, Fate, Row, plain
from fastsft.arguments.imports.framework import own_names
from fastsft.arguments.imports.source import Source

LABELLED = ("llamafactory", "axolotl", "trl", "swift")  # whose labels fastsft inspect compares
_KEY_WIDTH = 34
_ORDER = (Fate.LOST, Fate.CHANGED, Fate.CARRIED, Fate.IDLE, Fate.DEFAULT)


def report_lines(source: Source, draft: Draft) -> list[str]:
    """Return the table of all keys, by their outcome."""
    framework = source.framework
    lines = [f"{framework.title} (keys of {framework.version}; known by {source.known_by})"]
    for fate in _ORDER:
        rows = [row for row in draft.rows if row.fate is fate]
        if rows:
            lines += ["", f"{fate.value} ({len(rows)})", *map(_line, rows)]
    return lines


def _line(row: Row) -> str:
    """Return a row as text without line breaks, which would end a comment."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in _text(row)
    )


def _text(row: Row) -> str:
    if not row.key:
        return f"  {row.text}"
    key = row.key if _is_nested(row.value) else f"{row.key}: {plain(row.value)}"
    key = key if len(key) <= 2 * _KEY_WIDTH else f"{key[: 2 * _KEY_WIDTH - 3]}..."
    same = row.text in ("", key)
    return f"  {key}" if same else f"  {key.ljust(_KEY_WIDTH)} -> {row.text}"


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict) for item in value)
    )


def next_lines(origin: Path, path: Path, source: Source) -> list[str]:
    """Return the commands that come next. origin: the other trainer's file."""
    name = shlex.quote(str(path))
    ranks = f"FASTSFT_NUM_PROCESSES={source.ranks} " if source.ranks and source.ranks > 1 else ""
    lines = [f"look:  fastsft doctor --config {name}", f"train: {ranks}fastsft train --config {name}"]
    if source.framework.name in LABELLED:
        theirs = f"--against_config {shlex.quote(str(origin))} --against_python PYTHON"
        lines.append(f"compare labels: fastsft inspect {theirs}, which has {source.framework.title}")
    return lines


def yaml_text(origin: Path, path: Path, source: Source, draft: Draft) -> str:
    """Return the text of the new file."""
    head = [f"From {origin.name!a} by fastsft import.", *next_lines(origin, path, source), ""]
    comments = [f"# {line}".rstrip() for line in [*head, *report_lines(source, draft)]]
    place = own_names()
    values = [
        f"{name}: {_yaml(draft.values[name])}" for name in sorted(draft.values, key=lambda name: place[name])
    ]
    return "\n".join([*comments, "", *values, ""])


def _yaml(value: object) -> str:
    import yaml  # type: ignore[import-untyped]

    text = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, allow_unicode=True)
    return str(text).removesuffix("...\n").strip()
