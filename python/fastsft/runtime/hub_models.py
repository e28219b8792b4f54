"""Finds a model's directory: on this machine, in the hub's cache, or on the hub."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fastsft.runtime.given_types import check_path
from fastsft.runtime.hub import cache_fault, hub_reason, is_unreachable, partial_reason
from fastsft.runtime.near_names import missing_hint, nearest_path
from fastsft.runtime.regular_files import check_name, read_text

DEFAULT_MODEL = "facebook/opt-125m"  # FastChat's default
TOKENIZER_FILES = ("*.json", "*.model", "*.txt", "*.jinja")
WEIGHT_FILES = ("*.safetensors",)
# Files that other programs use: Mistral's weight format, and folders (onnx, original, ...) except
# additional_chat_templates. The patterns have no way to say "not this name".
_OTHERS = ("consolidated*", "[!a]*/*", "a[!d]*/*", "ad[!d]*/*")
_FLAG = "--model_name_or_path"
_HUB_NAME = re.compile(r"[\w.~-]+(/[\w.-]+)?")
_ADDRESSES = ("hf://", "https://huggingface.co/", "http://huggingface.co/", "huggingface.co/")


def local_directory(name: str, flag: str = _FLAG) -> Path | None:
    """Return `name` as a directory; None if it may be a hub model. ValueError if it cannot be either."""
    check_path(name, flag, "give the directory of a model or its name on the hub")
    name = os.fspath(name)
    if not name.strip():
        raise ValueError(f"{flag}: expected a model directory or the name of a hub model, got nothing")
    path = expanded(name)
    if path.is_dir():
        check_name(path.absolute(), flag)
        return path
    for address in _ADDRESSES:
        if name.startswith(address):
            raise ValueError(_hint_at_name(name.removeprefix(address).strip("/"), flag, name))
    if os.path.lexists(path):
        raise ValueError(f"{flag}: expected a model directory, got {_kind(path, name)}")
    if name.endswith("/") and may_be_hub_name(name.rstrip("/")):
        way = f"; a hub model is written without the / at the end, {name.rstrip('/')}"
        raise ValueError(f"{flag}: {name} is not a directory{_near(path) or way}")
    if not may_be_hub_name(name):
        raise ValueError(
            f"{flag}: {name} is not a directory{_tagged(name) or missing_hint(path, directories=True)}"
            f"{_of_parts(name)}"
        )
    return None


def _kind(path: Path, name: str) -> str:
    """Return text that says what `name` is instead of a directory, and the way out."""
    if path.suffix in (".gguf", ".onnx"):
        return f"the file {name}; name the directory of the safetensors model that it was made of"
    if path.exists():
        is_of_model = (path.parent / "config.json").is_file()
        if not is_of_model and path.suffix in (".yaml", ".yml"):
            return f"the file {name}; a file of flags is no model: {_way_of_flags(path)}"
        way = f"its directory, {path.parent}" if is_of_model else "a directory with config.json"
        return f"the file {name}; name {way}"
    return f"the link {name} to {os.readlink(path)}, which is not there; name another directory"


def _way_of_flags(path: Path) -> str:
    """Return the hint at the model that a run with these flags leaves, or at the command that reads them."""
    with contextlib.suppress(ValueError):
        if found := re.search(r"^output_dir: *['\"]?([^\s'\"#]+)", read_text(path), re.M):
            return f"name the directory that its run leaves, {found[1]}"
    return "fastsft train --config reads it; name the directory that its run left (--output_dir)"


def _tagged(name: str) -> str:
    """Return the hint at a name of Ollama, such as qwen2.5:7b, or with a revision; "" for other names."""
    plain, at, revision = name.partition("@")
    if at and may_be_hub_name(plain):
        return f"; a revision is downloaded first: hf download {plain} --revision {revision} --local-dir DIR"
    is_of_ollama = re.fullmatch(r"[\w.-]+(/[\w.-]+)?:[\w.-]+", name) is not None
    return "; a name of Ollama: the hub has the model by another, as owner/name" if is_of_ollama else ""


def _of_parts(name: str) -> str:
    """Return the hint at the form of hub names, for a name with too many parts that exists nowhere."""
    parts = name.strip("/").split("/")
    is_path = name.startswith((".", "/", "~")) or os.path.isdir(parts[0])
    return "" if is_path or len(parts) != 3 else "; a hub model is named owner/name"


def _near(path: Path) -> str:
    near = nearest_path(path, directories=True)
    return "" if near is None else f"; the nearest there is {near}"


def expanded(name: str) -> Path:
    """Return a path whose leading ~ is replaced by the home directory. ValueError for an unknown user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise ValueError(
            f"{name}: no user {name.split('/')[0][1:]} has a home directory here; write the path"
        ) from None


def may_be_hub_name(name: str) -> bool:
    """Return True for names such as gpt2 and Qwen/Qwen3-8B, which may also be paths."""
    return bool(_HUB_NAME.fullmatch(name)) and not name.startswith((".", "~"))


def _hint_at_name(path: str, flag: str, given: str) -> str:
    if path.startswith("datasets/"):
        return f"{flag}: expected a model, got the data set {given}; data sets are named by --data_path"
    return f"{flag}: expected a hub model by its name, got {given}; write {'/'.join(path.split('/')[:2])}"


def _hint_at_owner(name: str, flag: str) -> str:
    is_of_user = flag.startswith("--")
    return (
        ""
        if "/" in name or not is_of_user
        else f"; is its owner missing? Most names are of the form owner/{name}"
    )


def snapshot(name: str, cache_dir: str | None, files: Sequence[str], flag: str = _FLAG) -> Path:
    """Return the folder of a hub model in the cache, after downloading missing `files`.

    ValueError if there is no such model.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            name, cache_dir=cache_dir, allow_patterns=list(files), ignore_patterns=list(_OTHERS)
        )
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        raise ValueError(
            f"{flag} {name}: no such directory ({Path(name).absolute()}{_near(Path(name))}), and not "
            f"found on the hub: {hub_reason(error, 'model')}{of_default(name)}{_hint_at_owner(name, flag)}"
        ) from error
    except Exception as error:  # also errors of httpx and of hf_xet, which share no base class
        if not isinstance(error, OSError | RuntimeError) and not is_unreachable(error):
            raise
        if (fault := cache_fault(error)) is not None:
            raise ValueError(f"{flag} {name}: {fault}") from error
        raise ValueError(
            f"{flag} {name}: the download broke off: {hub_reason(error, 'model')}; {_way_on()}"
        ) from error
    return Path(folder)


def _way_on() -> str:
    """Return the way out of a download that broke off."""
    hub = os.environ.get("HF_ENDPOINT", "")
    is_address = not hub or hub.startswith(("https://", "http://"))
    return (
        "the same command goes on"
        if is_address
        else f"HF_ENDPOINT is {hub}: write https:// and a host, or unset it"
    )


def check_is_whole(folder: Path, name: str, needed: Sequence[str], flag: str = _FLAG) -> None:
    """Raise ValueError if no file in a snapshot has a name of `needed`: offline, a snapshot may be a part."""
    if not any(next(folder.glob(pattern), None) for pattern in needed):
        raise ValueError(
            f"{flag} {name}: {folder} has no {' or '.join(needed)}: {partial_reason()}; hf download {name} "
            "brings all"
        )


def tokenizer_directory(name: str, flag: str = _FLAG) -> Path:
    """Return the directory `name`, or that of a hub model whose files are downloaded without the weights."""
    if (path := local_directory(name, flag)) is not None:
        return path
    folder = snapshot(name, None, TOKENIZER_FILES, flag)
    check_is_whole(folder, name, ("tokenizer*", "vocab*", "*.model"), flag)
    return folder


def of_default(name: str) -> str:
    """Return a hint for an error message if `name` is FastChat's default model; else ""."""
    return (
        "; it is FastChat's default: name your model with --model_name_or_path"
        if name == DEFAULT_MODEL
        else ""
    )
