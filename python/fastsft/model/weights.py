"""Checks the names in a model directory's weight files, and loads weights into the engine's shards."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.model.family import is_native
from fastsft.model.not_a_model import no_weights
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.hub_models import TOKENIZER_FILES, WEIGHT_FILES, local_directory, snapshot
from fastsft.runtime.messages import warn_once
from fastsft.runtime.plain_pickle import check_named
from fastsft.runtime.regular_files import check_regular, file_inside, read_json_object
from fastsft.runtime.terminal import visible
from fastsft.runtime.torch_archive import read_archive
from fastsft.runtime.ways_out import way_out

if TYPE_CHECKING:
    import torch

    from fastsft import _C

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MOST_INDEX_BYTES = 64 << 20
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")

_PICKLED = "pytorch_model.bin"
_PICKLED_INDEX = "pytorch_model.bin.index.json"
_MOST_FILES = 10_000


def has_safetensors(directory: str | Path) -> bool:
    """Return True if a model directory has safetensors weights, in one file or with an index."""
    folder = Path(directory)
    return any(
        os.path.lexists(folder / name) for name in ("model.safetensors", "model.safetensors.index.json")
    )


def tell_of_two_forms(directory: str | Path) -> None:
    """Warn if a directory has weights both in one file and with an index, because they may differ."""
    folder = Path(directory)
    for single in ("model.safetensors", "pytorch_model.bin"):
        index = f"{single}.index.json"
        if all(os.path.lexists(folder / name) for name in (single, index)):
            warn_once(
                f"{folder}: {single} and {index} are both there: {single} is read, as transformers does, and "
                "the files that the index names are not; remove what is not of this model"
            )
            return
        if os.path.lexists(folder / single) or os.path.lexists(folder / index):
            return


def check_weight_names(config: Mapping[str, Any], directory: str | Path) -> None:
    """Raise ValueError if the index names missing files, or if the weights lack a native family's layers.

    Without this check, planning memory for layers that do not exist would take minutes before the weights are
    opened.
    """
    folder = Path(directory)
    names = _tensor_names(folder)
    layers = {int(match[1]) for match in map(_LAYER.search, names) if match}
    claimed = config.get("num_hidden_layers")
    if is_native(config) and isinstance(claimed, int) and layers and claimed > max(layers) + 1:
        raise ValueError(
            f"{folder / 'config.json'}: num_hidden_layers is {claimed}, and the weights in {folder} have "
            f"layers 0 to {max(layers)}; correct it, or copy the missing weights"
        )


def _tensor_names(folder: Path) -> list[str]:
    """Return the tensor names in safetensors files; an empty list for other weights."""
    from fastsft import _C

    if (folder / _SINGLE).is_file():
        return [tensor.name for tensor in _C.SafetensorsReader(str(folder / _SINGLE)).tensors]
    index = folder / _INDEX
    if not index.is_file():
        return []
    weight_map = read_json_object(index, _MOST_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        return []  # the weight loader raises the error
    files = sorted({str(file) for file in weight_map.values()})
    missing = [file for file in files if "/" not in file and not (folder / file).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(
            f"{index}: names {missing[0][:200]}{more}, which is not in {folder}; copy or download it again "
            f"({len(files) - len(missing)} of {len(files)} files are there)"
        )
    return list(weight_map)


def load_weights(engine: _C.Engine, model_dir: str | Path) -> None:
    """Fill the engine's master weights from a model directory or a hub model. Collective.

    If there are no safetensors, `pytorch_model*.bin` is read as plain data (`runtime/torch_archive.py`), with
    a warning. ValueError, with a list, for tensors that are missing or unknown, or have a wrong shape.
    """
    from fastsft import _C

    name = str(model_dir)
    directory = local_directory(name) or snapshot(name, None, [*TOKENIZER_FILES, *WEIGHT_FILES, "*.bin"])
    tell_of_two_forms(directory)
    advice = f"copy or download the weights again; fastsft verify {directory} says more"
    if has_safetensors(directory):
        with way_out(advice):
            notes = _C.load_model(engine, str(directory))
        for note in notes:
            warnings.warn(visible(note), stacklevel=2)
        return
    agreement = AllOrNone(f"loading {directory}")
    ignored = agreement.attempt(lambda: _load_pickled(_C.WeightLoader(engine), directory))
    with way_out(advice):
        agreement.settle(None)
    _C.publish_weights(engine)
    if ignored:
        warnings.warn(
            f"{directory}: tensors that the model does not use are ignored: {ignored}", stacklevel=2
        )


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
    """Yield the pickled weight files' paths. ValueError if there are none."""
    from fastsft import _C

    single = file_inside(directory, _PICKLED)
    if single is not None:
        yield single
        return
    index = file_inside(directory, _PICKLED_INDEX)
    if index is None:
        files = f"model.safetensors, model.safetensors.index.json, {_PICKLED} or {_PICKLED_INDEX}"
        raise no_weights(directory, files)
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f'{index}: expected an object with "weight_map": {{tensor: file}}; copy it again')
    names = sorted(set(weight_map.values()))
    if len(names) > _MOST_FILES:
        raise ValueError(f"{index}: expected at most {_MOST_FILES} files of weights, got {len(names)}")
    for name in names:
        yield Path(_C.path_inside(str(directory), name, str(index)))


def pickled_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a pickled weight file, memory-mapped, without running code from the file.

    ValueError for other content.
    """
    import torch

    check_regular(path, "a file of weights")
    try:
        content = read_archive(path)
    except ValueError as error:
        raise ValueError(f"{path}: not plain weights ({error}); convert the model to safetensors") from error
    check_named(path, content, torch.Tensor, "a tensor")
    yield from content.items()
