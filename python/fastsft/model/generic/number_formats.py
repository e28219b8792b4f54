"""Tensors of a model that are no parameters, in the number format that it computes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Tables that are no buffers either: float32 whatever the weights are, and added to them.
_TABLES = {"CTRLModel": "pos_encoding"}


def set_tables(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Tables that transformers leaves in float32, which a model of `dtype` cannot be called with."""
    for module in model.modules():
        name = _TABLES.get(type(module).__name__, "")
        table = vars(module).get(name)
        if isinstance(table, torch.Tensor):
            setattr(module, name, table.to(dtype))


def set_buffers(model: PreTrainedModel, made: PreTrainedModel) -> None:
    """Floating-point buffers of `model` in the formats of those of `made`, the same model with its weights in
    another format; a buffer that `made` does not have stays as it is."""
    formats = {name: buffer.dtype for name, buffer in made.named_buffers() if buffer.is_floating_point()}
    for place, module in model.named_modules():
        for name, buffer in module._buffers.items():
            wanted = formats.get(f"{place}.{name}" if place else name)
            if buffer is not None and buffer.is_floating_point() and wanted is not None:
                module._buffers[name] = buffer.to(wanted)
