"""The tensors of weight files that the parameters of a transformers model consist of.

transformers 5 has one parameter for all experts of a layer, parameters that are rows of one tensor of the
files, and other names in memory than in files. Its own conversion for saving says which tensors parameters
become; it is asked with tensors without memory, whose views tell their places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastsft.model.generic.empty_model import FAULTS, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Shape = tuple[int, ...]


def stored_tensors(model: PreTrainedModel, shapes: Mapping[str, _Shape]) -> dict[str, tuple[FileTensor, ...]]:
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


def _by_conversion(model: PreTrainedModel, shapes: Mapping[str, _Shape]) -> dict[str, tuple[FileTensor, ...]]:
    try:
        from transformers.core_model_loading import (
            revert_weight_conversion,
        )
    except ImportError:  # transformers 4: what is in memory is in the files
        return {
            name: (FileTensor(name, shape, file_order=at),) for at, (name, shape) in enumerate(shapes.items())
        }
    places = {name: torch.empty(shape, device="meta").as_subclass(_Place) for name, shape in shapes.items()}
    try:
        converted = revert_weight_conversion(model, dict(places))
    except FAULTS as error:
        raise _unknown(model, "its weights", first_line(error)) from error
    owners = {_storage(place): name for name, place in places.items()}
    found: dict[str, list[FileTensor]] = {name: [] for name in shapes}
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
) -> Iterator[tuple[str, FileTensor]]:
    """The parameters that the tensor `name` of files is a part of, or consists of, each with its place."""
    shape, within = tuple(tensor.shape), 0
    rows = getattr(tensor, "rows", None)
    for each in [tensor] if rows is None else rows:
        owner = owners.get(_storage(each))
        if owner is None or not each.is_contiguous():
            raise _unknown(model, name, "it is computed from parameters")
        if rows is None:
            yield owner, FileTensor(name, shape, int(each.storage_offset()))
            continue
        if tuple(each.shape) != shapes[owner]:
            raise _unknown(model, name, f"it has a part of {owner}")
        yield owner, FileTensor(name, shape, within=within)
        within += each.numel()


def _end_to_end(
    model: PreTrainedModel, name: str, shape: _Shape, parts: list[FileTensor]
) -> tuple[FileTensor, ...]:
    if len(parts) == 1 and parts[0].within is not None:
        return (parts[0],)
    ordered = tuple(sorted(parts, key=lambda part: part.first))
    end = 0
    for part in ordered:
        if part.first != end:
            raise _unknown(model, name, f"its tensors leave out or repeat elements from {end} on")
        end += part.numel
    if end != FileTensor(name, shape).numel:
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


@dataclass(frozen=True)
class FileTensor:
    """A tensor of the files, and of the engine.

    first: its first element in the parameter, row by row. file_order: its number among all of the files.
    within: where the tensor has several parameters, the first element of this one in it.
    """

    name: str
    shape: tuple[int, ...]
    first: int = 0
    file_order: int = 0
    within: int | None = None

    @property
    def numel(self) -> int:
        """Of its elements."""
        return math.prod(self.shape)

    def part_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """A view of `parameter`, or of anything of its shape."""
        if tuple(parameter.shape) == self.shape:
            return parameter
        return parameter.view(-1).narrow(0, self.first, self.numel).view(self.shape)


_ATTRIBUTE = "_fastsft_whole"  # of the text model


@dataclass(frozen=True)
class WholeModel:
    """model: the whole one, without weights. in_files: the names of all tensors of its files."""

    model: PreTrainedModel
    in_files: Collection[str]

    def name_in_memory(self, name: str) -> str:
        """The name of a tensor of the files in `model`, by transformers' own rules for loading."""
        return self._renamed(name)

    def name_in_files(self, in_memory: str, usual: str) -> str:
        """The name in the files of the parameter `in_memory`, or of a part of it.

        usual: the name with which transformers saves it.
        """
        return usual if usual in self.in_files else self._by_memory.get(in_memory, usual)

    @cached_property
    def _by_memory(self) -> dict[str, str]:
        return {self._renamed(name): name for name in self.in_files}

    @cached_property
    def _renamed(self) -> Callable[[str], str]:
        return _renaming(self.model)


def whole_model(model: nn.Module) -> WholeModel | None:
    """The vision-text model that `model` is a part of; None for a model that is whole."""
    found: WholeModel | None = vars(model).get(_ATTRIBUTE)
    return found


def as_part(text: PreTrainedModel, whole: WholeModel) -> PreTrainedModel:
    """`text` with the names that its modules have in `whole`.

    ValueError where neither `text` nor its decoder, next to a head of the same name, is one module there.
    """
    if len(paths := _paths(whole.model, text)) == 1:
        part = _around(paths[0], text)
    else:
        _rename_decoder(text, whole.model)
        part = text
    object.__setattr__(part, _ATTRIBUTE, whole)
    return part


def _rename_decoder(text: PreTrainedModel, whole: PreTrainedModel) -> None:
    head = text.get_output_embeddings()
    children = [(name, module) for name, module in text.named_children() if module is not head]
    name, decoder = children[0]
    paths = _paths(whole, decoder)
    inside = paths[0].removeprefix(f"{name}.") if len(paths) == 1 and len(children) == 1 else ""
    if not inside or inside == paths[0] or _head(text) != _head(whole):
        raise ValueError(
            f"config.json: {type(whole).__name__} does not hold the {type(decoder).__name__} of "
            f"{type(text).__name__} as its one text decoder; train this model with transformers' Trainer"
        )
    text._modules[name] = _around(inside, decoder)


def _paths(whole: nn.Module, part: nn.Module) -> list[str]:
    return [path for path, module in whole.named_modules() if type(module) is type(part)]


def _around(path: str, module: nn.Module) -> Any:
    for part in reversed(path.split(".")):
        module = _Around(part, module)
    return module


def _head(model: PreTrainedModel) -> str | None:
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head), None)


def _renaming(model: PreTrainedModel) -> Callable[[str], str]:
    """transformers' own rule by which the name of a tensor in files becomes one of `model`."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )
    except ImportError:  # transformers 4
        return lambda name: older_renaming(model, name)
    mapping, known = get_model_conversion_mapping(model), model.state_dict()
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    prefix = model.base_model_prefix

    def renamed(name: str) -> str:
        found: str = rename_source_key(name, renamings, converters, prefix, known)[0]
        return name if found not in known and name in known else found

    return renamed


def older_renaming(model: PreTrainedModel, name: str) -> str:
    """The name in memory by the class's own rule of transformers 4; 5 has none, and keeps `name`.

    Source: `_get_key_renaming_mapping` of transformers 4.57.
    """
    rules: dict[str, str] = getattr(model, "_checkpoint_conversion_mapping", None) or {}
    for pattern, replacement in rules.items():
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


class _Around(nn.Module):
    """A module that is the one inside of it, and gives that a longer name."""

    def __init__(self, name: str, inside: nn.Module) -> None:
        super().__init__()
        self._modules[name] = inside
        object.__setattr__(self, "_inside", inside)

    def __getattr__(self, name: str) -> Any:
        """Of the module inside, where this one has no such attribute."""
        own = self.__dict__["_modules"].get(name)
        return own if own is not None else getattr(self.__dict__["_inside"], name)

    def forward(self, *args: object, **kwargs: object) -> object:
        """The module inside."""
        return self._inside(*args, **kwargs)


def integer_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers of `model` that are saved with its weights and hold no floating-point numbers, by name."""
    saved = {
        f"{place}.{name}" if place else name
        for place, module in model.named_modules()
        for name in module._buffers.keys() - module._non_persistent_buffers_set
    }
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in saved and not buffer.is_floating_point()
    }
