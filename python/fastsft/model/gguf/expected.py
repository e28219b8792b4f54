"""Compute what llama.cpp's converter makes of a model's tensors: names and values in a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_NOT_STORED = re.compile(r"\.(rotary_emb\.inv_freq|attention\.(masked_)?bias)$")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_QUERY_OR_KEY = re.compile(r"\.(q|k)_proj\.(weight|bias)$")

Names = Callable[[str], str | None]


def expected_names(names: Iterable[str], name_of: Names) -> Iterator[tuple[str, str, int | None]]:
    """Yield for each tensor of a model its name, that of the GGUF tensor, and its place in there.

    name_of: the map of the package gguf. The place is the expert's number; None if the GGUF tensor is not
    stacked. ValueError if the map does not know a tensor.
    """
    for name in names:
        if _NOT_STORED.search(name):
            continue
        found = _EXPERT.search(name)
        mapped = name_of(_EXPERT.sub(".experts.", name))
        if mapped is None:
            raise ValueError(f"{name}: the package gguf has no name for it")
        yield name, mapped, int(found[1]) if found else None


def expected_value(
    name: str, value: torch.Tensor, architecture: str, config: Mapping[str, Any]
) -> torch.Tensor:
    """Return a tensor as the converter changes it, in float32.

    Llama's queries and keys are reordered for llama.cpp's rotary embedding; Gemma's norms are stored with the
    1 that the model adds.
    """
    value = value.float()
    found = _QUERY_OR_KEY.search(name)
    if architecture == "llama" and found:
        heads = config["num_attention_heads"]
        if found[1] == "k":
            heads = config.get("num_key_value_heads") or heads
        half = value.shape[0] // heads // 2
        return value.reshape(heads, 2, half, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    if architecture in ("gemma", "gemma2", "gemma3") and name.endswith("norm.weight"):
        return value + 1
    return value
