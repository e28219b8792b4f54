"""Marks of a given model's objects, compared before every step: the full check costs more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_TABLES = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_buffers", "_modules",
)  # fmt: skip


class Marks:
    """Attributes, hooks, buffers and parameters of `module`, and its configuration, as they are now.

    Holds no parameter, and reads none through the dictionaries that live_weights.py watches. Tensors are
    compared by value on the CPU; elsewhere by their version, which needs no wait for the device.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        parts = list(module.modules())
        self._parts, self._classes = parts, list(map(type, parts))
        self._attributes = [vars(part) for part in parts]
        self._kept = [dict(attributes) for attributes in self._attributes]
        tables = [
            attributes[name] for attributes in self._attributes for name in _TABLES if name in attributes
        ]
        tables.append(vars(module.config))
        self._filled, self._empty = (
            [table for table in tables if table],
            [table for table in tables if not table],
        )
        self._content = [dict(table) for table in self._filled]
        self._parameters = [part._parameters for part in parts if len(part._parameters)]
        self._numbers = list(self._of_parameters())
        self._buffers = [(buffer, _kept(buffer)) for buffer in _unique_buffers(self._attributes)]

    def changed(self) -> bool:
        """True if something else is there now. What evaluations set, `training`, does not count."""
        for attributes, kept in zip(self._attributes, self._kept, strict=True):
            if "training" in kept:  # not of what torch.compile wraps around a part
                kept["training"] = attributes.get("training")
        try:
            same = self._attributes == self._kept and self._content == self._filled and not any(self._empty)
        except Exception:  # of values that have no one answer, as tensors
            same = False
        return not (
            same
            and list(map(type, self._parts)) == self._classes
            and list(self._of_parameters()) == self._numbers
            and all(_is_kept(buffer, kept) for buffer, kept in self._buffers)
        )

    def with_gradient(self) -> Iterator[torch.Tensor]:
        """Parameters that have a gradient."""
        for table in self._parameters:
            for parameter in dict.values(table):
                if parameter is not None and parameter.grad is not None:
                    yield parameter

    def _of_parameters(self) -> Iterator[tuple[int, bool] | None]:
        for table in self._parameters:
            for each in dict.values(table):
                if each is None:
                    yield None
                else:
                    has_hooks = each._backward_hooks or each._post_accumulate_grad_hooks
                    yield (id(each), each.requires_grad and not has_hooks)


def _unique_buffers(attributes: list[dict[str, Any]]) -> list[torch.Tensor]:
    found = {id(each): each for own in attributes for each in own["_buffers"].values() if each is not None}
    return list(found.values())


def _kept(buffer: torch.Tensor) -> torch.Tensor | int:
    version: int = buffer._version
    return buffer.detach().clone() if buffer.device.type == "cpu" else version


def _is_kept(buffer: torch.Tensor, kept: torch.Tensor | int) -> bool:
    import torch

    if isinstance(kept, int):
        return bool(buffer._version == kept)
    return buffer.dtype == kept.dtype and torch.equal(buffer, kept)
