"""JSON objects on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastsft.runtime.regular_files import read_json

_TRUE = ("y", "yes", "t", "true", "on", "1")


def json_object(name: str, value: object) -> dict[str, Any]:
    """A dictionary from a JSON string, a dictionary or None. ValueError names the field for the rest."""
    if isinstance(value, str):
        try:
            value = with_values(json.loads(value))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"--{name}: expected a JSON object, got {value!r}: {error}") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"--{name}: expected a JSON object, got {value!r}")
    return dict(value or {})


def with_values(value: object) -> object:
    """Words inside a JSON object become values: true, false, digits and simple decimals; not 1e-4 or -1."""
    if isinstance(value, dict):
        return {key: with_values(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdigit() else value


def json_file_or_object(name: str, value: object) -> dict[str, Any]:
    """The same, or the name of a JSON file. ValueError also for a file that is not there."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        path = Path(value).expanduser()
        if not path.is_file():
            raise ValueError(f"--{name}: expected a JSON file or object, got {value!r}: no such file")
        try:
            value = read_json(path, of_user=True)
        except ValueError as error:
            raise ValueError(f"--{name}: {error}") from None
    return json_object(name, value)


def truth(value: object) -> bool:
    """A boolean, or one of the words y, yes, t, true, on, 1 for True; other words are False."""
    return value.lower() in _TRUE if isinstance(value, str) else bool(value)
