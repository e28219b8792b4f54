"""Layers that differ: how many of a model's first ones a small model needs to have each kind."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_FEWEST = 8  # patterns that a class keeps to itself are mostly shorter
_NOT_OF_LAYERS = ("training", "forward")  # the mode, and the engine's call of a block
_OWN_NUMBER = ("idx", "index", "layer_id", "block_id", "layer_num", "depth")  # in names of attributes


def layers_with_all_kinds(model: PreTrainedModel) -> int:
    """The number of first layers among which each kind of `model` is; at least 8, or all that there are."""
    count = _count(model)
    if count is None:
        return _FEWEST
    if not (lists := _lists(model, count)):
        return count
    return max(_first_with_all(_kinds(model, each, count, exact=True)) for each in lists)


def has_kinds_of(small: PreTrainedModel, model: PreTrainedModel) -> bool:
    """True if `small` has a layer of each kind of `model`'s, whatever their sizes."""
    found: list[list[set[Hashable]]] = []
    for each in (small, model):
        count = _count(each)
        lists = _lists(each, count) if count is not None else []
        found.append([set(_kinds(each, layers, count or 0, exact=False)) for layers in lists])
    return len(found[0]) == len(found[1]) and all(b <= a for a, b in zip(*found, strict=True))


def _count(model: PreTrainedModel) -> int | None:
    config = model.config.get_text_config()
    counts = (getattr(config, name, None) for name in LAYER_COUNTS)
    return next((each for each in counts if isinstance(each, int)), None)


def _lists(model: PreTrainedModel, count: int) -> list[nn.ModuleList]:
    return [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) == count]


def _first_with_all(kinds: Sequence[Hashable]) -> int:
    first = {kind: at for at, kind in reversed(list(enumerate(kinds)))}
    return max(min(_FEWEST, len(kinds)), *(at + 1 for at in first.values()))


def _kinds(model: PreTrainedModel, layers: nn.ModuleList, count: int, *, exact: bool) -> list[Hashable]:
    """Of each layer: its modules, their settings, and its places in lists of the configuration.

    exact: with numbers, which differ in a smaller model.
    """
    config = model.config.get_text_config().to_dict()
    lists = [value for value in config.values() if isinstance(value, list) and len(value) == count]
    return [
        (*_modules(layer, exact=exact), *(_entry(each, at, exact=exact) for each in lists))
        for at, layer in enumerate(layers)
    ]


def _entry(values: list[Any], at: int, *, exact: bool) -> Hashable:
    if values == list(range(len(values))):  # numbers of layers
        return True
    return _value(values[at], exact=exact)


def _modules(layer: nn.Module, *, exact: bool) -> list[Hashable]:
    return [
        (name, type(module), tuple(module._parameters), _settings(vars(module), exact=exact))
        for name, module in layer.named_modules()
    ]


def _settings(values: Mapping[str, Any], *, exact: bool) -> Hashable:
    return tuple(
        (name, _value(value, exact=exact))
        for name, value in values.items()
        if not name.startswith("_")
        and name not in _NOT_OF_LAYERS
        and not any(each in name for each in _OWN_NUMBER)
    )


def _value(value: object, *, exact: bool) -> Hashable:
    """A float has only its type: classes scale layers by their numbers."""
    if value is None or isinstance(value, bool | str) or (exact and isinstance(value, int)):
        return value
    return type(value).__name__
