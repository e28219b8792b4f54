"""`huggingface/` next to saved shards: configuration and tokenizer, as readers of shards need them."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from fastsft.model.config import json_text
from fastsft.weight_sync.engine_state import state_of
from fastsft.weight_sync.formats import WrittenFile, temporary_name
from fastsft.weight_sync.own_folders import make_folders

_FOLDER = "huggingface"


def huggingface_files(engine: Any, config: Any) -> dict[str, bytes]:
    """relative path -> content. Made once while configuration and tokenizer stay the same objects.

    On the calling thread: a tokenizer may not be used by two at a time. Entries of `config.auto_map` whose
    key is None are left out.
    """
    tokenizer = getattr(getattr(engine, "checkpoint_manager", None), "processing_class", None)
    state = state_of(engine)
    key = (id(tokenizer), _fingerprint(config))
    if state.huggingface_files is None or state.huggingface_files[0] != key:
        with tempfile.TemporaryDirectory() as folder:
            _save_config(config, folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
            content = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        state.huggingface_files = (key, content)
    return state.huggingface_files[1]


def write_huggingface_files(directory: Path, tag: str, files: dict[str, bytes]) -> list[WrittenFile]:
    """Durable under temporary names; their folders are there on return."""
    from fastsft import _C

    written = []
    for relative, content in files.items():
        name = f"{_FOLDER}/{relative}"
        make_folders(directory, name)
        temporary = temporary_name(name, tag)
        (directory / temporary).write_bytes(content)
        _C.sync_file(str(directory / temporary))
        written.append(WrittenFile(temporary, name, len(content), _C.crc32c(content)))
    return written


def _save_config(config: Any, folder: str) -> None:
    if config is None:
        return
    if isinstance(config, dict):
        Path(folder, "config.json").write_text(json_text(config))
        return
    saved = copy.copy(config)
    if None in (getattr(saved, "auto_map", None) or {}):
        saved.auto_map = {key: value for key, value in saved.auto_map.items() if key is not None}
    saved.save_pretrained(folder)


def _fingerprint(config: Any) -> str:
    """Changes when somebody edits the configuration."""
    return repr(config.to_dict() if hasattr(config, "to_dict") else config)
