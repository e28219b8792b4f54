"""Weights of a model directory into the engine's shards, by the names of transformers' model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.generic.placement import Unit, base_name
from fastsft.model.stored_weights import StoredWeights
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C


def load_generic_weights(
    engine: _C.Engine, model: PreTrainedModel, units: list[Unit], directory: str | Path
) -> None:
    """Fill the engine's masters tensor by tensor; collective.

    Of safetensors a rank touches the bytes of its own shards only. ValueError lists tensors that are missing,
    unknown or of another shape.
    """
    from fastsft import _C

    agreement = Agreement(f"loading {directory}")
    agreement.attempt(lambda: _fill(_C.WeightLoader(engine), model, units, directory))
    agreement.settle(None)
    _C.publish_weights(engine)


def _fill(loader: _C.WeightLoader, model: PreTrainedModel, units: list[Unit], directory: str | Path) -> None:
    stored = StoredWeights(directory)
    if stored.problems:
        raise ValueError(stored.problems[0])
    names = tensor_names(model, units, stored.tensors)
    for name, file_name in names.items():
        entry = stored.tensors[file_name]
        loader.set(name, stored.read(file_name), str(entry.file))
    ignored = _unused(model, set(stored.tensors) - set(names.values()), set(aliases(model, units)))
    for name in ignored:
        loader.set(name, stored.read(name), str(stored.tensors[name].file))
    loader.finish(str(directory))


def tensor_names(model: PreTrainedModel, units: list[Unit], stored: Mapping[str, object]) -> dict[str, str]:
    """The tensors of the model that `stored` has, each with its name there.

    A name may lack the prefix of the base model, or have it too much, as transformers allows; a tied
    tensor has one name of several.
    """
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    others: dict[str, list[str]] = {}
    for alias, name in aliases(model, units).items():
        others.setdefault(name, []).append(alias)
    found = {}
    for one in (each for unit in units for each in unit.parameters):
        for tensor in one.stored:
            more = (one.name, *others.get(one.name, ())) if len(one.stored) == 1 else ()
            names = (each for name in (tensor.name, *more) for each in spellings(name, prefix))
            match = next((each for each in names if each in stored), None)
            if match is not None:
                found[tensor.name] = match
    return found


def spellings(name: str, prefix: str) -> list[str]:
    """Under which names files may have it."""
    return [name, name.removeprefix(prefix), prefix + name]


def aliases(model: PreTrainedModel, units: list[Unit]) -> dict[str, str]:
    """Further names of tied tensors, each with the name that is trained and saved."""
    found: dict[int, dict[str, str]] = {}
    for unit in units:
        for one in unit.parameters:
            for module, short in one.owners:
                found.setdefault(id(module), {})[short] = one.name
    names = {}
    for prefix, module in model.named_modules():
        for short, name in found.get(id(module), {}).items():
            own = base_name(f"{prefix}.{short}" if prefix else short)
            if own != name:
                names[own] = name
    return names


def _unused(model: PreTrainedModel, left: set[str], tied: set[str]) -> list[str]:
    """Tensors that nobody has a place for, without those that transformers leaves out as well."""
    patterns = [re.compile(each) for each in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    unknown = []
    for name in sorted(left):
        if any(each in tied for each in spellings(name, prefix)) or any(
            each.search(name) for each in patterns
        ):
            continue
        if is_table(model, name, prefix):
            warn_once(f"{name} of the files is a table that the model computes itself: not read")
            continue
        unknown.append(name)
    return unknown


def is_table(model: PreTrainedModel, name: str, prefix: str) -> bool:
    """True for a buffer of the model, which some releases of transformers saved."""
    buffers = {each for each, _ in model.named_buffers()}
    return any(each in buffers for each in spellings(name, prefix)) or name.endswith(
        (".attn.bias", ".attn.masked_bias")
    )
