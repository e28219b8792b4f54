"""Snapshots of library names and model modules. Comparing is cheaper than checking again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


_TABLES = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_buffers", "_modules",
)  # fmt: skip


class WatchedNames:
    """A watch on names in modules and classes, which keeps the values that the names had when added."""

    def __init__(self) -> None:
        self._values: list[tuple[Mapping[str, object], str, object, CodeType | None]] = []
        self._sizes: list[tuple[Sized, int]] = []

    def add(self, owner: object, name: str) -> None:
        """Watch a name in a module or class."""
        names = vars(owner)
        value = names.get(name)
        self._values.append((names, name, value, _code(value)))

    def add_all(self, owner: object) -> None:
        """Watch all names in a class, and their number."""
        for name in vars(owner):
            self.add(owner, name)
        self.add_size(vars(owner))

    def add_size(self, content: Sized) -> None:
        """Watch the item count in a collection."""
        self._sizes.append((content, len(content)))

    def changed(self) -> bool:
        """Return True if a name's value, a function's code or a collection's size has changed.

        The comparison is fast, because it runs at every step.
        """
        return any(
            names.get(name) is not value or _code(value) is not code
            for names, name, value, code in self._values
        ) or any(len(content) != size for content, size in self._sizes)


class ModuleSnapshot:
    """The attributes, hooks, buffers, parameters and configuration of `module` when the snapshot is made.

    The snapshot keeps no references to parameters, and reads no parameters through the dictionaries that
    live_weights.py watches. Buffers on the CPU are compared by value. Buffers on a device are compared by
    torch's version counter, without waiting for the device.
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
        self._filled = [table for table in tables if table]
        self._empty = [table for table in tables if not table]
        self._content = [dict(table) for table in self._filled]
        self._parameters = [part._parameters for part in parts if len(part._parameters)]
        self._numbers = list(self._of_parameters())
        self._buffers = [(buffer, _kept(buffer)) for buffer in _unique_buffers(self._attributes)]

    def changed(self) -> bool:
        """Return True if anything differs from the snapshot, except `training`, which evaluations change."""
        for attributes, kept in zip(self._attributes, self._kept, strict=True):
            if "training" in kept:  # torch.compile's wrapper of a module has no `training`
                kept["training"] = attributes.get("training")
        try:
            same = self._attributes == self._kept and self._content == self._filled and not any(self._empty)
        except Exception:  # `==` raises an error if attributes are tensors
            same = False
        return not (
            same
            and list(map(type, self._parts)) == self._classes
            and list(self._of_parameters()) == self._numbers
            and all(_is_kept(buffer, kept) for buffer, kept in self._buffers)
        )

    def with_gradient(self) -> Iterator[torch.Tensor]:
        """Yield the parameters that have a gradient."""
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


def _code(value: object) -> CodeType | None:
    return value.__code__ if isinstance(value, FunctionType) else None
