"""Makes small models for trials, with every kind of layer and with switches small enough for short rows.

A switch is a setting with which a model may compare a row's length: a window, chunk, block or floor size.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any

from torch import nn

from fastsft.model.generic.empty_model import FAULTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Config = Mapping[str, Any]
Make = Callable[[dict[str, Any]], "PreTrainedModel"]
_Path = tuple[str, ...]
_Shapes = dict[str, tuple[int, ...]]
# Largest sizes in the small model, by name in the configuration.
_SMALLER = {
    "vocab_size": 64, "hidden_size": 64, "n_embd": 64, "d_model": 64, "emb_dim": 64,
    "intermediate_size": 64, "ffn_dim": 64, "n_inner": 64, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16, "intermediate_size_mlp": 64,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "q_lora_rank": 32, "kv_lora_rank": 32, "rotary_dim": 8, "num_local_experts": 4, "num_experts": 4,
    "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2,
    "moe_topk": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_POSITION = re.compile(
    r"position_embeddings|(n|max)_positions|n_ctx|seq_len|seq_length|context_length|max_length"
)
# Parameter sizes, layer counts and token ids, which are never switches.
_NO_SWITCH = re.compile(
    r"(_ids?|_index|_token|_version|seed|theta|section)$|dim|rank|heads?$|width|experts|embed|hidden|"
    r"intermediate|vocab|ffn|kernel|layer|pattern|interval|period|offset|every|embd|inner|group"
)
_IS_SWITCH = re.compile(r"window|chunk|block|floor|topk|top_k|extent")
_POSITIONS, _SWITCH = 32, 4  # largest position count, and any other switch's largest value
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_FEWEST_LAYERS = 8  # longer than most layer patterns in model code
# Attributes that are not settings: the mode, and the forward that Block replaces.
_NOT_SETTINGS = ("training", "forward")
# Parts of attribute names that hold a layer's number.
_LAYER_NUMBER = ("idx", "index", "layer_id", "block_id", "layer_num", "depth")


def small_model(make: Make, model: PreTrainedModel) -> PreTrainedModel:
    """Make a small model like `model`, with all of its layer kinds, and with small switches."""
    config = model.config.to_dict()
    depth = layers_with_all_kinds(model)
    small = _make_small(make, smaller(config, depth))
    if not has_kinds_of(small, model):  # a layer pattern may count from the last layer
        small = _make_small(make, smaller(config, None))
    return small


def small_model_of_all_layers(make: Make, model: PreTrainedModel) -> PreTrainedModel:
    """Make a `small_model` with as many layers as `model`, so that the parameters have the same names."""
    return _make_small(make, smaller(model.config.to_dict(), None))


def smaller(config: Config, depth: int | None) -> dict[str, Any]:
    """Return a small model's configuration with the first `depth` layers; all layers if None."""
    count = next((config[name] for name in LAYER_COUNTS if isinstance(config.get(name), int)), None) or 0
    kept = count if depth is None else min(depth, count)
    small: dict[str, Any] = {}
    for name, given in config.items():
        if not isinstance(name, str):  # id2label has numbers as keys
            small[name] = given
            continue
        value = _of_first_layers(given, count, kept) if kept < count else given
        most = kept if name in LAYER_COUNTS else _most(name)
        if isinstance(value, Mapping):
            small[name] = smaller(value, depth)
        else:
            small[name] = value if most is None else _at_most(value, most)
    if config.get("num_attention_heads") == config.get("num_key_value_heads") is not None:
        small["num_key_value_heads"] = small["num_attention_heads"]
    return {**small, **dict.fromkeys(_IDS, 0)} if "vocab_size" in config else small


def _most(name: str) -> int | None:
    return _POSITIONS if _POSITION.search(name) else _SMALLER.get(name)


def _at_most(value: Any, most: int) -> Any:
    if isinstance(value, list):
        return [_at_most(item, most) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return min(value, most)


def _of_first_layers(value: Any, count: int, kept: int) -> Any:
    """Shorten a setting by layer: a list with an entry per layer, a list of layer numbers, or a mapping."""
    if isinstance(value, Mapping) and value and all(str(key).isdigit() for key in value):
        return {key: setting for key, setting in value.items() if int(key) < kept}
    if not isinstance(value, list):
        return value
    if len(value) == count:
        return value[:kept]
    are_layers = all(isinstance(item, int) and 0 <= item < count for item in value)
    return [item for item in value if item < kept] if are_layers and len(set(value)) == len(value) else value


def _make_small(make: Make, config: dict[str, Any]) -> PreTrainedModel:
    small = make(config)
    switches = list(_switches(config))
    return make(_reduce_switches(make, config, switches, _shapes(small))) if switches else small


def _switches(config: Config, path: _Path = ()) -> Iterator[_Path]:
    """Yield the path of each setting in `config` that may be a switch, by its name and type."""
    for name, value in config.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, Mapping):
            yield from _switches(value, (*path, name))
        elif _may_be_switch(name, value) and value != _at_most(value, _SWITCH):
            yield (*path, name)


def _may_be_switch(name: str, value: Any) -> bool:
    if _POSITION.search(name):
        return False
    is_named = _IS_SWITCH.search(name) is not None
    if isinstance(value, list):
        return is_named
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and (is_named or not _NO_SWITCH.search(name))


def _reduce_switches(
    make: Make, config: dict[str, Any], switches: list[_Path], shapes: _Shapes
) -> dict[str, Any]:
    """Reduce each of the `switches` to at most 4, unless a parameter's shape would change."""
    changed = copy.deepcopy(config)
    for *path, name in switches:
        settings = reduce(getitem, path, changed)
        settings[name] = _at_most(settings[name], _SWITCH)
    try:
        if _shapes(make(changed)) == shapes:
            return changed
    except FAULTS:
        pass
    if len(switches) == 1:
        return config
    half = len(switches) // 2
    config = _reduce_switches(make, config, switches[:half], shapes)
    return _reduce_switches(make, config, switches[half:], shapes)


def _shapes(model: PreTrainedModel) -> _Shapes:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def layers_with_all_kinds(model: PreTrainedModel) -> int:
    """Return how many first layers include every layer kind; at least 8, at most all."""
    count = _count(model)
    if count is None:
        return _FEWEST_LAYERS
    if not (lists := _lists(model, count)):
        return count
    return max(_first_with_all(_kinds(model, layers, count, exact=True)) for layers in lists)


def has_kinds_of(small: PreTrainedModel, model: PreTrainedModel) -> bool:
    """Return True if `small` has all layer kinds of `model`, not comparing sizes."""
    kinds: list[list[set[Hashable]]] = []
    for candidate in (small, model):
        count = _count(candidate)
        lists = _lists(candidate, count) if count is not None else []
        kinds.append([set(_kinds(candidate, layers, count or 0, exact=False)) for layers in lists])
    return len(kinds[0]) == len(kinds[1]) and all(b <= a for a, b in zip(*kinds, strict=True))


def _count(model: PreTrainedModel) -> int | None:
    config = model.config.get_text_config()
    counts = (getattr(config, name, None) for name in LAYER_COUNTS)
    return next((count for count in counts if isinstance(count, int)), None)


def _lists(model: PreTrainedModel, count: int) -> list[nn.ModuleList]:
    return [
        module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count
    ]


def _first_with_all(kinds: Sequence[Hashable]) -> int:
    first = {kind: at for at, kind in reversed(list(enumerate(kinds)))}
    return max(min(_FEWEST_LAYERS, len(kinds)), *(at + 1 for at in first.values()))


def _kinds(model: PreTrainedModel, layers: nn.ModuleList, count: int, *, exact: bool) -> list[Hashable]:
    """Describe each layer by its modules, their settings, and its entries in the configuration's lists.

    exact: True to compare integers, too; they are sizes, which differ in a smaller model.
    """
    config = model.config.get_text_config().to_dict()
    lists = [value for value in config.values() if isinstance(value, list) and len(value) == count]
    return [
        (*_modules(layer, exact=exact), *(_entry(values, at, exact=exact) for values in lists))
        for at, layer in enumerate(layers)
    ]


def _entry(values: list[Any], at: int, *, exact: bool) -> Hashable:
    if values == list(range(len(values))):  # a list of layer numbers
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
        and name not in _NOT_SETTINGS
        and not any(part in name for part in _LAYER_NUMBER)
    )


def _value(value: object, *, exact: bool) -> Hashable:
    """Return the value if it can distinguish layer kinds, else its type: floats can vary in every layer."""
    if value is None or isinstance(value, bool | str) or (exact and isinstance(value, int)):
        return value
    return type(value).__name__
