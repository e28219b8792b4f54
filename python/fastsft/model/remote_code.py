"""Code in a model's directory, which --trust_remote_code True would make the original run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.runtime.regular_files import read_json_object

_OF_CONFIG = ("AutoConfig", "AutoModelForCausalLM")
_OF_TOKENIZER = ("AutoTokenizer",)


def refuse_remote_code(directory: Path, config: Mapping[str, Any]) -> None:
    """ValueError for a class in `auto_map` that transformers would take in the place of its own.

    config: the content of config.json. For runs that trust it; others train the family's own class, as
    transformers does.
    """
    _refuse(directory / "config.json", config, _OF_CONFIG)
    path = directory / "tokenizer_config.json"
    if path.is_file():
        _refuse(path, read_json_object(path), _OF_TOKENIZER)


def _refuse(path: Path, content: Mapping[str, Any], names: tuple[str, ...]) -> None:
    found = content.get("auto_map")
    table = found if isinstance(found, Mapping) else {}
    if isinstance(found, list | tuple):  # of old tokenizers: the classes alone
        table = {"AutoTokenizer": found}
    for name in names:
        if table.get(name):
            raise ValueError(
                f"--trust_remote_code True: {path}: auto_map has {name} {table[name]!r}, code that "
                "transformers would run, and fastsft never runs: leave the flag out, or take the entry out "
                "of the file, to train with the family's own class; else train with transformers' Trainer"
            )
