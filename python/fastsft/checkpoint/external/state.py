"""The state dict of another trainer's model: the tensors, and the tensor names in transformers' files."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fastsft.checkpoint.external.units import (
    DistributedTensor,
    Entry,
    NotStreamable,
    PlainTensor,
    Unit,
    check_has_values,
    flat_state_entries,
)
from fastsft.checkpoint.external.wrapped import clean_name, is_dtensor, is_fsdp1, unwrapped
from fastsft.runtime.launch import Launch


def state_entries(model: nn.Module, place: Launch) -> list[Entry]:
    """Return the entries of `unwrapped(model).state_dict()` in the same order, without gathering tensors.

    NotStreamable if the model's modules save more than parameters and buffers; ValueError if weights are on
    the meta device.
    """
    if is_fsdp1(model):
        return flat_state_entries(model, unwrapped(model), place)
    entries, units = [], dict[Hashable, Unit]()
    for name, tensor in unwrapped(model).state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise NotStreamable(f"its state holds {name}, which is no tensor")
        unit = units.setdefault(_identity(tensor), _unit_of(name, tensor, place.rank))
        entries.append(
            Entry(
                clean_name(name), unit, 0, tuple(tensor.shape), tensor.dtype, isinstance(tensor, nn.Parameter)
            )
        )
    return entries


def _identity(tensor: torch.Tensor) -> Hashable:
    # DTensors are identified by object: the address of an empty shard would make its rank differ from others.
    if is_dtensor(tensor) or tensor.numel() == 0 or tensor.device.type == "meta":
        return id(tensor)
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def _unit_of(name: str, tensor: torch.Tensor, rank: int) -> Unit:
    check_has_values(name, tensor)
    if is_dtensor(tensor):
        return DistributedTensor(tensor, rank)
    return PlainTensor(tensor, tensor.dtype, rank)


def saved_entries(model: nn.Module, entries: list[Entry]) -> list[Entry]:
    """Return the entries that `model.save_pretrained` would save, with the names in its files.

    Tied weights are saved once, under the name that the model does not list in `_tied_weights_keys`. Other
    shared tensors are saved under each name, so that they load in any case. NotStreamable if transformers
    would convert weights.
    """
    entries = _original_names(model, entries)
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    entries = [entry for entry in entries if entry.name not in ignored]
    entries = _renamed(getattr(model, "_fix_state_dict_keys_on_save", None), entries)
    entries = _renamed(_reverse_conversion(model), entries)
    dropped = _tied_names(model, entries)
    return [entry for entry in entries if entry.name not in dropped]


def tied_patterns(model: nn.Module) -> list[str]:
    """Return regular expressions for the names that the model, or a module in it, declares as tied."""
    patterns: list[str] = []
    for name, module in model.named_modules():
        prefix = clean_name(name)
        for attribute in ("_tied_weights_keys", "_dynamic_tied_weights_keys"):
            keys = getattr(module, attribute, None) or ()
            patterns += [f"{prefix}.{key}" if prefix else str(key) for key in keys]
    return patterns


def _tied_names(model: nn.Module, entries: list[Entry]) -> set[str]:
    names_of: dict[tuple[int, int], set[str]] = defaultdict(set)
    for entry in entries:
        names_of[id(entry.unit), entry.position].add(entry.name)
    shared = [names for names in names_of.values() if len(names) > 1]
    patterns = tied_patterns(model) if shared else []
    dropped: set[str] = set()
    for names in shared:
        tied = sorted(name for name in names if any(re.search(pattern, name) for pattern in patterns))
        dropped.update(tied if len(tied) < len(names) else tied[:-1])
    return dropped


def _original_names(model: nn.Module, entries: list[Entry]) -> list[Entry]:
    """Return entries with the tensor names that vision-language models have in files.

    These are the module names before transformers 4.52.
    """
    mapping = {
        now: before for before, now in (getattr(model, "_checkpoint_conversion_mapping", None) or {}).items()
    }
    kinds = getattr(sys.modules.get("transformers.modeling_utils"), "VLMS", ())
    classes = [kind.__name__.lower() for kind in type(model).__mro__[:-1]]
    if not mapping or not any(kind in name for name in classes for kind in kinds):
        return entries
    return [replace(entry, name=_original_name(mapping, entry.name)) for entry in entries]


def _original_name(mapping: dict[str, str], name: str) -> str:
    for pattern, original in mapping.items():
        plain = re.sub(r"\(.*\)", "", original.lstrip("^"))
        renamed, count = re.subn(pattern, plain, name)
        if count:
            return renamed
    return name


def _reverse_conversion(model: nn.Module) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Return the conversion that transformers 5 applies to a state dict before saving; None in release 4."""
    module = sys.modules.get("transformers.core_model_loading")
    revert = getattr(module, "revert_weight_conversion", None)
    return None if revert is None else lambda state: dict(revert(model, state))


def _renamed(rename: Callable[[dict[str, Any]], dict[str, Any]] | None, entries: list[Entry]) -> list[Entry]:
    """Return `entries` with the names and the order that `rename` gives to a state dict.

    NotStreamable if `rename` makes new tensors.
    """
    if rename is None:
        return entries
    markers = {entry.name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for entry in entries}
    entry_of = {id(markers[entry.name]): entry for entry in entries}
    renamed = rename(dict(markers))
    if not all(id(marker) in entry_of for marker in renamed.values()):
        raise NotStreamable("transformers converts its weights while saving")
    return [replace(entry_of[id(marker)], name=name) for name, marker in renamed.items()]
