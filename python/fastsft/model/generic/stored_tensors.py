"""The tensors of weight files that the parameters of a transformers model consist of.

transformers 5 has one parameter for all experts of a layer, parameters that are rows of one tensor of the
files, and other names in memory than in files. Its own conversion for saving says which tensors parameters
become; it is asked with tensors without memory, whose views tell their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fastsft.model.generic.carried import integer_buffers
from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.generic.whole_model import older_renaming, whole_model
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
    whole = whole_model(model)
    if whole is None:
        return _by_conversion(model, shapes)
    found = _by_conversion(whole.model, shapes)
    return {
        name: tuple(replace(part, name=whole.name_in_files(name, part.name)) for part in parts)
        for name, parts in found.items()
    }


def buffer_names(model: PreTrainedModel) -> dict[str, str]:
    """Names in memory and in files of saved buffers that hold no floating-point numbers."""
    buffers = integer_buffers(model)
    if not buffers:
        return {}
    shapes = {name: tuple(each.shape) for name, each in (*model.named_parameters(), *buffers.items())}
    stored = stored_tensors(model, shapes)
    return {name: stored[name][0].name for name in buffers}


def name_in_memory(model: PreTrainedModel, name: str) -> str:
    """The name that a tensor `name` of files has in the model, which may be a part of another one."""
    whole = whole_model(model)
    return older_renaming(model, name) if whole is None else whole.name_in_memory(name)


def _by_conversion(
    model: PreTrainedModel, shapes: Mapping[str, _Shape]
) -> dict[str, tuple[StoredTensor, ...]]:
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
        for owner, part in _parts(model, name, tensor, owners, shapes):
            found[owner].append(replace(part, file_order=at))
    return {name: _end_to_end(model, name, shapes[name], parts) for name, parts in found.items()}


def _parts(
    model: PreTrainedModel,
    name: str,
    tensor: torch.Tensor,
    owners: Mapping[int, str],
    shapes: Mapping[str, _Shape],
) -> Iterator[tuple[str, StoredTensor]]:
    """The parameters that the tensor `name` of files is a part of, or consists of, each with its place."""
    shape, within = tuple(tensor.shape), 0
    rows = getattr(tensor, "rows", None)
    for each in [tensor] if rows is None else rows:
        owner = owners.get(_storage(each))
        if owner is None or not each.is_contiguous():
            raise _unknown(model, name, "it is computed from parameters")
        if rows is None:
            yield owner, StoredTensor(name, shape, int(each.storage_offset()))
            continue
        if tuple(each.shape) != shapes[owner]:
            raise _unknown(model, name, f"it has a part of {owner}")
        yield owner, StoredTensor(name, shape, within=within)
        within += each.numel()


def _end_to_end(
    model: PreTrainedModel, name: str, shape: _Shape, parts: list[StoredTensor]
) -> tuple[StoredTensor, ...]:
    if len(parts) == 1 and parts[0].within is not None:
        return (parts[0],)
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


_JOINING = (torch.cat, torch.concat, torch.concatenate)


class _Place(torch.Tensor):
    """A tensor without memory, of which `contiguous` makes no copy: views of it tell where they are.

    rows: of tensors that were joined along their first dimension, these.
    """

    rows: list[torch.Tensor] | None = None

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """As torch's, but for `contiguous`, and for joining, which keeps what was joined."""
        if function is torch.Tensor.contiguous:
            return args[0]
        made = super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if function in _JOINING and (kwargs or {}).get("dim", [*args, 0][1]) == 0:
            made.rows = list(args[0] if args else kwargs["tensors"])
        return made
