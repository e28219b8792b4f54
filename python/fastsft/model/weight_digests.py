"""Digests of the weights that training starts from, by which ranks tell that they hold the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.config import has_safetensors
from fastsft.model.weights import pickled_files
from fastsft.ranks.comparison import common_digests

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fastsft.model.causal_lm import CausalLM


_MODULE = "module"  # of models in memory


def place_of_weights(model: CausalLM) -> str:
    """The place of the weights that training starts from: "an engine", "memory" or "a directory"."""
    if getattr(model, "engine", None) is not None:
        return "an engine"
    return "a directory" if getattr(model, _MODULE, None) is None else "memory"


def weight_digests(model: CausalLM) -> dict[str, str]:
    """Of a model in memory every tensor, of a directory its weight files, by name.

    Collective, on models whose weights are in the same place on all ranks. {} where engines hold the weights
    already, which they share. Raises as `common_digests`.
    """
    place = place_of_weights(model)
    if place == "memory":
        module: nn.Module = getattr(model, _MODULE)
        return tensor_digests(module.named_parameters())
    if place == "an engine":
        return {}
    return common_digests("comparing weights", lambda: weight_files(model.source_directory))


def weight_files(directory: str | Path) -> list[Path]:
    """The weight files of a model directory. ValueError as of its readers."""
    from fastsft import _C

    if has_safetensors(directory):
        return [Path(path) for path in _C.weight_files(str(directory))]
    return list(pickled_files(Path(directory)))


def tensor_digests(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """CRC-32C of every element of tensors, by name; named: pairs of name and tensor."""
    import torch

    from fastsft import _C

    found = {}
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found[name] = f"{list(tensor.shape)} {tensor.dtype} {_C.buffer_checksum(flat, flat.numel()):08x}"
    return found


def type_of_digest(digest: str) -> str:
    """The type of the tensor that has this digest of `tensor_digests`: `bfloat16`."""
    return digest.split()[-2].removeprefix("torch.")
