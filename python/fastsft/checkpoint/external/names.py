"""The names under which transformers saves the tensors of a model's state dict."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fastsft.checkpoint.external.entries import Entry, NotStreamable, clean_name

if TYPE_CHECKING:
    from torch import nn


def saved_entries(model: nn.Module, entries: list[Entry]) -> list[Entry]:
    """`entries` as `model.save_pretrained` would name them, each tensor once.

    Tied weights keep the name that the model does not list in `_tied_weights_keys`; sharing that no list
    declares is saved under every name, which loads in any case. NotStreamable when transformers would convert
    weights.
    """
    entries = _original_names(model, entries)
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    entries = [entry for entry in entries if entry.name not in ignored]
    entries = _renamed(getattr(model, "_fix_state_dict_keys_on_save", None), entries)
    entries = _renamed(_reverse_conversion(model), entries)
    dropped = _tied_names(model, entries)
    return [entry for entry in entries if entry.name not in dropped]


def tied_patterns(model: nn.Module) -> list[str]:
    """Regular expressions of names that repeat another tensor, of the model and the models in it."""
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
    """The names that models of images and text had before transformers 4.52, which it goes on writing."""
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
    """The conversion that transformers 5 applies to a state dict before it is saved."""
    module = sys.modules.get("transformers.core_model_loading")
    revert = getattr(module, "revert_weight_conversion", None)
    return None if revert is None else lambda state: dict(revert(model, state))


def _renamed(rename: Callable[[dict[str, Any]], dict[str, Any]] | None, entries: list[Entry]) -> list[Entry]:
    """`entries` as `rename` names and orders a state dict; NotStreamable when it makes other tensors."""
    if rename is None:
        return entries
    markers = {entry.name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for entry in entries}
    entry_of = {id(markers[entry.name]): entry for entry in entries}
    renamed = rename(dict(markers))
    if not all(id(marker) in entry_of for marker in renamed.values()):
        raise NotStreamable("transformers converts its weights while saving")
    return [replace(entry_of[id(marker)], name=name) for name, marker in renamed.items()]
