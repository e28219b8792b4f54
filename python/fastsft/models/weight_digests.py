"""Digests of the weights that training starts from, by which ranks tell that they hold the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastsft.dataset.sampled_digest import sampled_digest
from fastsft.models.config import has_safetensors
from fastsft.models.weights import pickled_files


def weight_digests(model: Any) -> dict[str, str]:
    """Of a `model` in memory every tensor, of a directory its weight files, by name.

    {} where an engine holds the weights already, which its ranks share.
    """
    if getattr(model, "engine", None) is not None:
        return {}
    module = getattr(model, "module", None)
    if module is not None:
        return tensor_digests(module.named_parameters())
    return file_digests(model.source_directory)


def file_digests(directory: str | Path) -> dict[str, str]:
    """Of the weight files of a model directory, by name (`sampled_digest`); {} where there are none."""
    from fastsft import _C

    if has_safetensors(directory):
        paths = [Path(path) for path in _C.weight_files(str(directory))]
    else:
        paths = list(pickled_files(Path(directory)))
    return {path.name: sampled_digest(path) for path in paths}


def tensor_digests(named: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """CRC-32C of every element of tensors, by name; named: pairs of name and tensor."""
    import torch

    from fastsft import _C

    found = {}
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found[name] = f"{list(tensor.shape)} {tensor.dtype} {_C.buffer_checksum(flat, flat.numel()):08x}"
    return found
