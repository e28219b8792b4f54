"""Reads the weights of a Hugging Face directory into the engine's shards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.config import has_safetensors, tell_of_two_forms
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.plain_pickle import check_named
from fastsft.runtime.regular_files import check_regular, file_inside, read_json_object
from fastsft.runtime.terminal import visible
from fastsft.runtime.torch_archive import read_archive

if TYPE_CHECKING:
    import torch

    from fastsft import _C

_PICKLED = "pytorch_model.bin"
_PICKLED_INDEX = "pytorch_model.bin.index.json"
_MOST_FILES = 10_000


def load_weights(engine: _C.Engine, model_dir: str | Path) -> None:
    """Fill the engine's master weights from a model directory or hub name; collective.

    safetensors is preferred; `pytorch_model*.bin` is read as data (`runtime/torch_archive.py`) and
    one warning, tensor by tensor. ValueError lists tensors that are missing, unknown or of another shape.
    """
    from fastsft import _C

    directory = _local_directory(str(model_dir))
    tell_of_two_forms(directory)
    if has_safetensors(directory):
        for note in _C.load_model(engine, str(directory)):
            warnings.warn(visible(note), stacklevel=2)
        return
    agreement = Agreement(f"loading {directory}")
    ignored = agreement.attempt(lambda: _load_pickled(_C.WeightLoader(engine), directory))
    agreement.settle(None)
    _C.publish_weights(engine)
    if ignored:
        warnings.warn(
            f"{directory}: tensors that the model does not use are ignored: {ignored}", stacklevel=2
        )


def _local_directory(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(
            f"{name}: expected a model directory or the name of a hub model, found no such directory"
        )
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.bin", "*.txt", "*.jinja"]
    return Path(snapshot_download(name, allow_patterns=patterns))


def _load_pickled(loader: _C.WeightLoader, directory: Path) -> list[str]:
    files = list(pickled_files(directory))
    warnings.warn(
        f"{directory}: no safetensors, reading {_PICKLED} as plain data; converting the model to safetensors "
        "is faster",
        stacklevel=4,
    )
    for path in files:
        for name, tensor in pickled_tensors(path):
            loader.set(name, tensor.detach().contiguous(), str(path))
    names: list[str] = loader.finish(str(directory))
    return names


def pickled_files(directory: Path) -> Iterator[Path]:
    """The files of pickled weights, by their index where there is one. ValueError when there are none."""
    from fastsft import _C

    single = file_inside(directory, _PICKLED)
    if single is not None:
        yield single
        return
    index = file_inside(directory, _PICKLED_INDEX)
    if index is None:
        raise ValueError(
            f"{directory}: expected model.safetensors, model.safetensors.index.json, {_PICKLED} or "
            f"{_PICKLED_INDEX}, found none"
        )
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f'{index}: expected an object with "weight_map": {{tensor: file}}')
    names = sorted(set(weight_map.values()))
    if len(names) > _MOST_FILES:
        raise ValueError(f"{index}: expected at most {_MOST_FILES} files of weights, got {len(names)}")
    for name in names:
        yield Path(_C.path_inside(str(directory), name, str(index)))


def pickled_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the tensors of a file of pickled weights, mapped; no code runs. ValueError for anything else."""
    import torch

    check_regular(path, "a file of weights")
    try:
        content = read_archive(path)
    except ValueError as error:
        raise ValueError(f"{path}: not plain weights ({error}); convert the model to safetensors") from error
    check_named(path, content, torch.Tensor, "a tensor")
    yield from content.items()
