"""ModelConfig, the content of config.json, and access to its model directory or hub snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastsft.model.config import check_config_types, json_text
from fastsft.model.config_words import as_computed_here, in_both_words
from fastsft.model.not_a_model import no_config
from fastsft.model.rope_words import check_agree, set_rope
from fastsft.model.weights import has_safetensors
from fastsft.runtime.hub_models import (
    TOKENIZER_FILES,
    WEIGHT_FILES,
    check_is_whole,
    local_directory,
    snapshot,
)
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import file_inside, read_json, read_json_object

_CODE = "*.py"
_PICKLED = "*.bin"
_OF_SAVED_MODEL = ("torch_dtype", "dtype", "bos_token_id", "eos_token_id", "pad_token_id", "architectures")


class ModelConfig(dict[str, Any]):
    """A config.json's content, whose keys are also attributes.

    Scripts may change it. A save writes the content at that moment.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config.json has no key {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __setitem__(self, name: str, value: object) -> None:
        """Set a key, and remove an older or newer key for the same RoPE setting."""
        set_rope(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the content as a plain dict."""
        return dict(self)

    def to_json_string(self) -> str:
        """Return the content as JSON text, for trackers."""
        return json.dumps(self, indent=2, sort_keys=True) + "\n"

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write config.json into `save_directory` on this rank, with transformers 4 and 5 keys.

        Keys about weights and tokenizer that an earlier model save wrote there stay.
        """
        path = Path(save_directory) / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        saved = read_json_object(path) if path.is_file() else {}
        kept = {name: saved[name] for name in _OF_SAVED_MODEL if name in saved}
        replace_file(path, ModelConfig(in_both_words({**self, **kept})).to_json_string())


def model_config(name: str) -> ModelConfig:
    """Read a configuration from a JSON file, a directory or a hub model. ValueError if there is none."""
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == ".json":
        if not isinstance(read_json(path), dict):
            raise ValueError(
                f"--model_name_or_path: expected a model directory or its config.json, got {name}, which "
                "holds no object; data is given as --data_path"
            )
        return _read_config(path)
    return config_of_directory(config_directory(name))


def config_of_directory(directory: Path) -> ModelConfig:
    """Read a model directory's config.json. ValueError if there is none."""
    path = file_inside(directory, "config.json")
    if path is None:
        raise no_config(directory)
    return _read_config(path)


def _read_config(path: Path) -> ModelConfig:
    content = read_json_object(path)
    check_config_types(content, path)
    check_agree(content, str(path))
    return ModelConfig(content)


def write_both_words(directory: str | Path) -> None:
    """Add the missing transformers 4 or 5 keys to a config.json that transformers has saved."""
    path = Path(directory) / "config.json"
    written = read_json_object(path)
    if (complete := in_both_words(as_computed_here(written))) != written:
        replace_file(path, json_text(complete))


def model_directory(
    name: str, cache_dir: str | None = None, *, has_code: bool = False, flag: str = "--model_name_or_path"
) -> Path:
    """Return the directory `name`, or a hub model's snapshot after downloading missing files.

    Pickled weights are downloaded only if there are no safetensors, and Python files only if has_code is
    True. ValueError, which begins with `flag`, if `name` is neither a directory nor a hub model.
    """
    if (path := local_directory(name, flag)) is not None:
        return path
    files = [*TOKENIZER_FILES, *WEIGHT_FILES, *([_CODE] if has_code else [])]
    directory = snapshot(name, cache_dir, files, flag)
    if has_safetensors(directory) or (directory / "adapter_config.json").is_file():
        return directory
    directory = snapshot(name, cache_dir, [_PICKLED], flag)
    check_is_whole(directory, name, (*WEIGHT_FILES, _PICKLED), flag)
    return directory


def config_directory(name: str, cache_dir: str | None = None, *, has_code: bool = False) -> Path:
    """Return the same as `model_directory`, but download only config.json, and Python files if has_code."""
    return local_directory(name) or snapshot(name, cache_dir, ["config.json", *([_CODE] if has_code else [])])
