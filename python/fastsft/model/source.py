"""The directory of a model: a local one, or the snapshot of a model of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastsft.model.config import has_safetensors
from fastsft.runtime.hub import hub_reason
from fastsft.runtime.regular_files import check_name

DEFAULT = "facebook/opt-125m"  # of FastChat's ModelArguments
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_CODE = "*.py"
_PICKLED = "*.bin"
# Files of other programs: weights in the form of Mistral's, everything in folders (onnx, original, ...).
_OTHERS = ("consolidated*", "*/*")


def model_directory(name: str, cache_dir: str | None = None, *, has_code: bool = False) -> Path:
    """A local directory, or the snapshot of a hub model, whose files are downloaded when not there yet.

    Pickled weights are downloaded where there are no safetensors; Python files with has_code. ValueError when
    `name` is neither.
    """
    if (path := local_directory(name)) is not None:
        return path
    directory = _snapshot(name, cache_dir, [*_FILES, _CODE] if has_code else _FILES)
    return directory if has_safetensors(directory) else _snapshot(name, cache_dir, [_PICKLED])


def config_directory(name: str, cache_dir: str | None = None) -> Path:
    """`model_directory`, of which nothing but config.json is downloaded."""
    return local_directory(name) or _snapshot(name, cache_dir, ["config.json"])


def local_directory(name: str) -> Path | None:
    """The directory; None for what may be a hub model. ValueError for what can be neither."""
    path = Path(name).expanduser()
    if path.is_dir():
        check_name(path.absolute(), "--model_name_or_path")
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"model_name_or_path: {name} is not a directory")
    return None


def _snapshot(name: str, cache_dir: str | None, files: Sequence[str]) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        found = huggingface_hub.snapshot_download(
            name, cache_dir=cache_dir, allow_patterns=list(files), ignore_patterns=list(_OTHERS)
        )
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        raise ValueError(
            f"--model_name_or_path {name}: no such directory ({Path(name).absolute()}), and not found on the "
            f"hub: {hub_reason(error, 'model')}{of_default(name)}"
        ) from error
    return Path(found)


def of_default(name: str) -> str:
    """The end of a message about FastChat's default model; empty for others."""
    return "; it is FastChat's default: name your model with --model_name_or_path" if name == DEFAULT else ""
