"""The tensors of weight files that the parameters of a transformers model consist of.

transformers 5 has one parameter for all experts of a layer, and other names in memory than in files. Its own
conversion for saving says which tensors a parameter becomes; it is asked with tensors without memory, whose
views tell their places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.stored_tensor import StoredTensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Shape = tuple[int, ...]


def stored_tensors(
    model: PreTrainedModel, shapes: Mapping[str, _Shape]
) -> dict[str, tuple[StoredTensor, ...]]:
    """Of each parameter its tensors in files, end to end. shapes: of the parameters, in the model's order.

    ValueError for a parameter whose tensors are not its rows end to end.
    """
    try:
        from transformers.core_model_loading import (
            revert_weight_conversion,
        )
    except ImportError:  # transformers 4: what is in memory is in the files
        return {
            name: (StoredTensor(name, shape, file_order=at),)
            for at, (name, shape) in enumerate(shapes.items())
        }
    places = {name: torch.empty(shape, device="meta").as_subclass(_Place) for name, shape in shapes.items()}
    try:
        converted = revert_weight_conversion(model, dict(places))
    except FAULTS as error:
        raise _unknown(model, "its weights", first_line(error)) from error
    owners = {_storage(place): name for name, place in places.items()}
    found: dict[str, list[StoredTensor]] = {name: [] for name in shapes}
    for at, (name, tensor) in enumerate(converted.items()):
        owner = owners.get(_storage(tensor))
        if owner is None or not tensor.is_contiguous():
            raise _unknown(model, name, "it is computed from parameters")
        found[owner].append(StoredTensor(name, tuple(tensor.shape), tensor.storage_offset(), at))
    return {name: _end_to_end(model, name, shapes[name], parts) for name, parts in found.items()}


def _end_to_end(
    model: PreTrainedModel, name: str, shape: _Shape, parts: list[StoredTensor]
) -> tuple[StoredTensor, ...]:
    ordered = tuple(sorted(parts, key=lambda part: part.first))
    end = 0
    for part in ordered:
        if part.first != end:
            raise _unknown(model, name, f"its tensors leave out or repeat elements from {end} on")
        end += part.numel
    if end != StoredTensor(name, shape).numel:
        raise _unknown(model, name, f"its tensors have {end} of its elements")
    return ordered


def _unknown(model: PreTrainedModel, what: str, why: str) -> ValueError:
    return ValueError(
        f"{type(model).__name__}: expected files with the rows of parameters, as many tensors as there are, "
        f"got {what} in another form ({why}); train this model with transformers' Trainer"
    )


def _storage(tensor: torch.Tensor) -> int:
    cdata: int = tensor.untyped_storage()._cdata
    return cdata


class _Place(torch.Tensor):
    """A tensor without memory, of which `contiguous` makes no copy: views of it tell where they are."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """As torch's, but for `contiguous`."""
        if function is torch.Tensor.contiguous:
            return args[0]
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
