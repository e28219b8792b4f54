"""Words of tokenizer_config.json that transformers 5 writes and 4 does not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import read_json_object

_FILE, _SPECIAL = "tokenizer_config.json", "extra_special_tokens"
# Of transformers 5, which takes the older name for the same class.
_OLDER_CLASSES = {"TokenizersBackend": "PreTrainedTokenizerFast"}


def write_tokenizer_words(directory: str | Path) -> None:
    """Rewrite tokenizer_config.json of `directory` in words of both releases; else it keeps its bytes."""
    path = Path(directory) / _FILE
    if not path.is_file():
        return
    found = read_json_object(path)
    made = tokenizer_words(found, has_json=(path.parent / "tokenizer.json").is_file())
    if made != found:
        replace_file(path, json.dumps(made, indent=2, ensure_ascii=False) + "\n")


def tokenizer_words(config: Mapping[str, Any], *, has_json: bool) -> dict[str, Any]:
    """tokenizer_config.json in words of both releases: the class, and the list of special tokens.

    has_json: tokenizer.json is next to it, which PreTrainedTokenizerFast needs.
    """
    made = dict(config)
    name = str(made.get("tokenizer_class"))
    if has_json and name in _OLDER_CLASSES:
        made["tokenizer_class"] = _OLDER_CLASSES[name]
    if isinstance(made.get(_SPECIAL), list):  # transformers 4 takes an object alone
        listed = made.pop(_SPECIAL)
        known = made.get("additional_special_tokens") or []
        made["additional_special_tokens"] = [*known, *(each for each in listed if each not in known)]
    return made
