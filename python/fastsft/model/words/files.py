"""A config.json that transformers has written, in the words of both of its releases."""

from __future__ import annotations

from pathlib import Path

from fastsft.model.config import json_text
from fastsft.model.words.both import as_computed_here, in_both_words
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import read_json_object


def write_both_words(directory: str | Path) -> None:
    """Rewrite config.json of a model in memory that was saved to `directory`, if it lacks words."""
    path = Path(directory) / "config.json"
    found = read_json_object(path)
    if (made := in_both_words(as_computed_here(found))) != found:
        replace_file(path, json_text(made))
