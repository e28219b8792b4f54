"""Files and layers of a model's weights, looked at by their names alone, before anything is planned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.model.family import is_native
from fastsft.runtime.regular_files import read_json_object

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MOST_INDEX_BYTES = 64 << 20
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def check_weight_names(config: Mapping[str, Any], directory: str | Path) -> None:
    """ValueError for an index that names files which are not there, and for layers that the weights lack.

    The latter of native families, whose layers share nothing: a plan for layers that do not exist takes
    minutes before the weights are opened.
    """
    folder = Path(directory)
    names = _names(folder)
    layers = {int(match[1]) for match in map(_LAYER.search, names) if match}
    claimed = config.get("num_hidden_layers")
    if is_native(config) and isinstance(claimed, int) and layers and claimed > max(layers) + 1:
        raise ValueError(
            f"{folder / 'config.json'}: num_hidden_layers is {claimed}, and the weights in {folder} have "
            f"layers 0 to {max(layers)}; correct it, or copy the missing weights"
        )


def _names(folder: Path) -> list[str]:
    """Of the tensors in safetensors files; none where weights are of another kind."""
    from fastsft import _C

    if (folder / _SINGLE).is_file():
        return [tensor.name for tensor in _C.SafetensorsReader(str(folder / _SINGLE)).tensors]
    index = folder / _INDEX
    if not index.is_file():
        return []
    places = read_json_object(index, _MOST_INDEX_BYTES).get("weight_map")
    if not isinstance(places, dict):
        return []  # whoever opens the weights says what is wrong
    files = sorted({str(file) for file in places.values()})
    missing = [file for file in files if "/" not in file and not (folder / file).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(
            f"{index}: names {missing[0][:200]}{more}, which is not in {folder}; copy or download it again "
            f"({len(files) - len(missing)} of {len(files)} files are there)"
        )
    return list(places)
