"""Maps a transformers model's parameters to its weight files' tensors.

In transformers 5, one parameter holds all experts in a layer, some parameters are rows of a file's tensor,
and names in memory differ from names in files. To find the mapping, transformers' own conversion for saving
is called with tensors on the meta device. The resulting views show which elements become which file tensor.
For a vision-text model's text decoder, the whole model's conversion and names are used (WholeModel).
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
_JOINING = (torch.cat, torch.concat, torch.concatenate)
_ATTRIBUTE = "_fastsft_whole"  # the text decoder's attribute that holds its WholeModel


@dataclass(frozen=True)
class FileTensor:
    """A weight file tensor that holds a transformers parameter or a part of one.

    first: where the tensor begins in the flat parameter. file_order: its number among all file
    tensors.
    within: where the parameter begins in the flat tensor, if the tensor holds several parameters; else None.
    """

    name: str
    shape: tuple[int, ...]
    first: int = 0
    file_order: int = 0
    within: int | None = None

    @property
    def numel(self) -> int:
        """The tensor's element count."""
        return math.prod(self.shape)

    def part_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the elements in `parameter` that this tensor holds, as a view.

        parameter: the parameter, or another tensor with the same shape.
        """
        if tuple(parameter.shape) == self.shape:
            return parameter
        return parameter.view(-1).narrow(0, self.first, self.numel).view(self.shape)


def stored_tensors(model: PreTrainedModel, shapes: Mapping[str, _Shape]) -> dict[str, tuple[FileTensor, ...]]:
    """Map each parameter to the file tensors that hold its elements.

    shapes: parameter shapes, in model order. ValueError if a parameter is not the concatenation of file
    tensors.
    """
    whole = whole_model(model)
    if whole is None:
        return _by_conversion(model, shapes)
    return {
        name: tuple(replace(part, name=whole.name_in_files(name, part.name)) for part in parts)
        for name, parts in _by_conversion(whole.model, shapes).items()
    }


def buffer_names(model: PreTrainedModel) -> dict[str, str]:
    """Map the name in memory of each saved integer buffer to its name in the weight files."""
    buffers = integer_buffers(model)
    if not buffers:
        return {}
    shapes = {name: tuple(tensor.shape) for name, tensor in (*model.named_parameters(), *buffers.items())}
    stored = stored_tensors(model, shapes)
    return {name: stored[name][0].name for name in buffers}


def integer_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's saved buffers that are not floating-point, by name."""
    saved = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._buffers.keys() - module._non_persistent_buffers_set
    }
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in saved and not buffer.is_floating_point()
    }


def name_in_memory(model: PreTrainedModel, name: str) -> str:
    """Return a file tensor's name in memory. For a text decoder, this is the name in the whole model."""
    whole = whole_model(model)
    return older_renaming(model, name) if whole is None else whole.name_in_memory(name)


def _by_conversion(model: PreTrainedModel, shapes: Mapping[str, _Shape]) -> dict[str, tuple[FileTensor, ...]]:
    try:
        from transformers.core_model_loading import (
            revert_weight_conversion,
        )
    except ImportError:  # in transformers 4, files and memory have the same tensors
        return {
            name: (FileTensor(name, shape, file_order=at),) for at, (name, shape) in enumerate(shapes.items())
        }
    tracers = {name: torch.empty(shape, device="meta").as_subclass(_Tracer) for name, shape in shapes.items()}
    try:
        converted = revert_weight_conversion(model, dict(tracers))
    except FAULTS as error:
        raise _unknown(model, "its weights", first_line(error)) from error
    owners = {_storage(tracer): name for name, tracer in tracers.items()}
    parts_of: dict[str, list[FileTensor]] = {name: [] for name in shapes}
    for at, (name, tensor) in enumerate(converted.items()):
        for owner, part in _parts(model, name, tensor, owners, shapes):
            parts_of[owner].append(replace(part, file_order=at))
    return {name: _end_to_end(model, name, shapes[name], parts) for name, parts in parts_of.items()}


def _parts(
    model: PreTrainedModel,
    name: str,
    tensor: torch.Tensor,
    owners: Mapping[int, str],
    shapes: Mapping[str, _Shape],
) -> Iterator[tuple[str, FileTensor]]:
    """Yield the parameters that share elements with the file tensor `name`, each with its FileTensor."""
    shape, within = tuple(tensor.shape), 0
    joined = getattr(tensor, "joined", None)
    for part in [tensor] if joined is None else joined:
        owner = owners.get(_storage(part))
        if owner is None or not part.is_contiguous():
            raise _unknown(model, name, "it is computed from parameters")
        if joined is None:
            yield owner, FileTensor(name, shape, int(part.storage_offset()))
            continue
        if tuple(part.shape) != shapes[owner]:
            raise _unknown(model, name, f"it has a part of {owner}")
        yield owner, FileTensor(name, shape, within=within)
        within += part.numel()


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


class _Tracer(torch.Tensor):
    """A meta tensor whose `contiguous` makes no copy, so that storage offsets tell where a view begins.

    joined: the tensors whose concatenation along the first dimension is this tensor; None for another result.
    """

    joined: list[torch.Tensor] | None = None

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.contiguous:
            return args[0]
        made = super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if function in _JOINING and (kwargs or {}).get("dim", [*args, 0][1]) == 0:
            made.joined = list(args[0] if args else kwargs["tensors"])
        return made


@dataclass(frozen=True)
class WholeModel:
    """The vision-text model around a text decoder, without weights.

    in_files: all tensor names in the files.
    """

    model: PreTrainedModel
    in_files: Collection[str]

    def name_in_memory(self, name: str) -> str:
        """Return a file tensor's name in `model`, by transformers' rules for loading."""
        return self._renamed(name)

    def name_in_files(self, in_memory: str, usual: str) -> str:
        """Return the file name for the parameter `in_memory`, or for a part.

        usual: the name that transformers would use when it saves.
        """
        return usual if usual in self.in_files else self._by_memory.get(in_memory, usual)

    @cached_property
    def _by_memory(self) -> dict[str, str]:
        return {self._renamed(name): name for name in self.in_files}

    @cached_property
    def _renamed(self) -> Callable[[str], str]:
        return _renaming(self.model)


def whole_model(model: nn.Module) -> WholeModel | None:
    """Return the vision-text model to which `model` belongs; None if there is none."""
    whole: WholeModel | None = vars(model).get(_ATTRIBUTE)
    return whole


def as_part(text: PreTrainedModel, whole: WholeModel) -> PreTrainedModel:
    """Rename `text`'s modules as they are named in `whole`.

    ValueError unless `whole` contains exactly one module with the class of `text`, or one with its decoder's
    class and a head with the same name.
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
    """Return transformers' function that converts a file tensor's name to the name in `model`."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )
    except ImportError:  # transformers 4
        return lambda name: older_renaming(model, name)
    mapping, state = get_model_conversion_mapping(model), model.state_dict()
    renamings = [rule for rule in mapping if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in mapping if isinstance(rule, WeightConverter)]
    prefix = model.base_model_prefix

    def rename(name: str) -> str:
        renamed: str = rename_source_key(name, renamings, converters, prefix, state)[0]
        return name if renamed not in state and name in state else renamed

    return rename


def older_renaming(model: PreTrainedModel, name: str) -> str:
    """Return the name in memory by the rules that transformers 4 has in the model class; version 5 has none
    there.

    Source: `_get_key_renaming_mapping` of transformers 4.57.
    """
    rules: dict[str, str] = getattr(model, "_checkpoint_conversion_mapping", None) or {}
    for pattern, replacement in rules.items():
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


class _Around(nn.Module):
    """A wrapper that adds a part to a module's name. It passes calls and attributes to the module."""

    def __init__(self, name: str, inside: nn.Module) -> None:
        super().__init__()
        self._modules[name] = inside
        object.__setattr__(self, "_inside", inside)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__["_modules"].get(name)
        return own if own is not None else getattr(self.__dict__["_inside"], name)

    def forward(self, *args: object, **kwargs: object) -> object:
        return self._inside(*args, **kwargs)
