"""A text model as a part of the vision-text model that its directory holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
