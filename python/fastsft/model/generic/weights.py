"""Weights of a model directory into the engine's shards, by the names of transformers' model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.model.generic.generic_model import GenericModel
from fastsft.model.generic.peft_names import base_name
from fastsft.model.generic.placement import Unit
from fastsft.model.generic.stored_tensors import buffer_names, name_in_memory, whole_model
from fastsft.model.stored_weights import DTYPES, StoredWeights, UnitLayout, bits_of, stored_dtype
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.messages import tell, warn_once

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def load_generic_weights(
    engine: _C.Engine, model: PreTrainedModel, units: list[Unit], directory: str | Path
) -> None:
    """Fill the engine's masters tensor by tensor; collective.

    Of safetensors a rank touches the bytes of its own shards only. ValueError lists tensors that are missing,
    unknown or of another shape.
    """
    agreement = Agreement(f"loading {directory}")
    agreement.attempt(lambda: _fill(_C.WeightLoader(engine), model, units, directory))
    agreement.settle(None)
    _C.publish_weights(engine)


def _fill(loader: _C.WeightLoader, model: PreTrainedModel, units: list[Unit], directory: str | Path) -> None:
    stored = StoredWeights(directory)
    if stored.problems:
        raise ValueError(stored.problems[0])
    sorted_ = sort_names(model, units, stored.tensors)
    for name, file_name in sorted_.names.items():
        entry = stored.tensors[file_name]
        loader.set(name, stored.read(file_name), str(entry.file))
    for name in sorted_.tables:
        warn_once(f"{name} of the files is a table that the model computes itself: not read")
    own = (one for unit in units for one in unit.parameters if not one.is_adapter)
    wanted = {tensor.name for one in own for tensor in one.tensors}
    others = sorted_.carried if wanted - sorted_.names.keys() else []  # what is missing may have their names
    for name in (*sorted_.without_place, *others):
        if stored.tensors[name].dtype in DTYPES:
            loader.set(name, stored.read(name), str(stored.tensors[name].file))
    loader.finish(str(directory))


@dataclass
class SortedNames:
    """The tensors of a model's files.

    names: of the model's, each with its name there. buffers: likewise, of buffers that hold no floating-point
    numbers. copies: a name in `names`, and a second one of the same tied tensor. tables: that the model
    computes. ignored: left out by transformers. carried: with no place in the model, saved as they are.
    without_place: a tensor of the model under a further name. missing: buffers that no file has.
    """

    names: dict[str, str]
    buffers: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)
    without_place: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def sort_names(model: PreTrainedModel, units: list[Unit], stored: Mapping[str, object]) -> SortedNames:
    """The places of all tensors `stored` of a directory."""
    found = SortedNames(tensor_names(model, units, stored))
    prefix, tied = _prefix(model), aliases(model, units)
    for name, in_files in buffer_names(model).items():
        match = next((each for each in spellings(in_files, prefix) if each in stored), None)
        if match is None:
            found.missing.append(in_files)
        else:
            found.buffers[name] = match
    patterns = _read_past(model)
    used = {*found.names.values(), *found.buffers.values()}
    for name in stored:
        known = [
            each for spelling in (name, name_in_memory(model, name)) for each in spellings(spelling, prefix)
        ]
        if name in used:
            continue
        owner = next((found.names.get(tied[each]) for each in known if each in tied), None)
        if owner is not None:
            found.copies.append((owner, name))
        elif any(each.search(name) for each in patterns):
            found.ignored.append(name)
        elif is_table(model, name, prefix):
            found.tables.append(name)
        elif any(each in found.names for each in known):
            found.without_place.append(name)
        else:
            found.carried.append(name)
    return found


def _read_past(model: PreTrainedModel) -> list[re.Pattern[str]]:
    """Patterns of names that transformers leaves out; none of a part of another model, whose rest is kept."""
    if whole_model(model) is not None:
        return []
    found = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return [re.compile(each) for each in found]


def _prefix(model: PreTrainedModel) -> str:
    return f"{getattr(model, 'base_model_prefix', '')}."


def tensor_names(model: PreTrainedModel, units: list[Unit], stored: Mapping[str, object]) -> dict[str, str]:
    """The tensors of the model that `stored` has, each with its name there.

    A name may lack the prefix of the base model, or have it too much, as transformers allows; a tied
    tensor has one name of several; a class of transformers 4 may rename what it loads.
    """
    prefix = _prefix(model)
    by_memory = {name_in_memory(model, name): name for name in stored}
    others: dict[str, list[str]] = {}
    for alias, name in aliases(model, units).items():
        others.setdefault(name, []).append(alias)
    found = {}
    for one in (each for unit in units for each in unit.parameters):
        for tensor in one.stored:
            is_alone = len(one.stored) == 1 and tensor.within is None
            more = (
                (one.name, *others.get(one.name, ()), by_memory.get(one.name, one.name)) if is_alone else ()
            )
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


def is_table(model: PreTrainedModel, name: str, prefix: str) -> bool:
    """True for a buffer of the model, which some releases of transformers saved."""
    buffers = {each for each, _ in model.named_buffers()}
    return any(each in buffers for each in spellings(name, prefix)) or name.endswith(
        (".attn.bias", ".attn.masked_bias")
    )


class StoredForm:
    """plain: of the model, without weights."""

    def __init__(self, plain: GenericModel, stored: StoredWeights) -> None:
        self._stored, self._shapes = stored, dict(parameter_shapes(plain))
        self.sorted = sort_names(plain.model, plain.units, stored.tensors)
        self.names = self.sorted.names

    def problems(self) -> list[str]:
        """A line for each tensor that is missing, of another shape or type, or there under two names."""
        missing = [name for name in self._shapes if name not in self.names]
        found = [f"missing: {name}" for name in (*missing, *self.sorted.missing)]
        for name, of_file in self.names.items():
            entry = self._stored.tensors[of_file]
            if list(entry.shape) != self._shapes[name]:
                found.append(f"{of_file}: expected shape {self._shapes[name]}, got {list(entry.shape)}")
            elif entry.dtype not in DTYPES:
                found.append(f"{of_file}: expected one of {', '.join(DTYPES)}, got {entry.dtype}")
        return found + [f"config.json has no place for {each}" for each in self.sorted.without_place]

    def second_copies(self) -> list[tuple[str, str]]:
        """Names in the files of tied tensors: the one that is read, and another with the same values."""
        return self.sorted.copies

    def unneeded(self) -> list[str]:
        """Tensors that the model computes itself, or that transformers leaves out."""
        return [*self.sorted.tables, *self.sorted.ignored]


def parameter_shapes(plain: GenericModel) -> list[tuple[str, list[int]]]:
    """(name, shape) of the tensors of the files, in the order of the units; without adapters."""
    parameters = (one for unit in plain.units for one in unit.parameters if not one.is_adapter)
    return [(tensor.name, list(tensor.shape)) for one in parameters for tensor in one.tensors]


def unit_layouts(plain: GenericModel) -> list[UnitLayout]:
    """Of each trained unit: name, no digest, elements, and its tensors with shape and first element."""
    layouts: list[UnitLayout] = []
    for (at, part), places in zip(plain.parts(trained=True), plain.layout.places, strict=True):
        sizes = {tensor.name: tensor.numel for one in part for tensor in one.tensors}
        size = max((offset + sizes[name] for name, _, offset in places), default=0)
        unit = plain.units[at].name
        layouts.append((unit, None, size, [(name, list(shape), first) for name, shape, first in places]))
    return layouts


_SHOWN = 3


def carry_from_files(engine: _C.Engine, stored: StoredWeights, names: Iterable[str]) -> None:
    """Save the tensors `names` of `stored` with the engine's model.

    Safetensors stay open and are read at each save; pickled tensors are kept in memory.
    """
    for name in names:
        entry = stored.tensors[name]
        shape = list(entry.shape)
        if stored.is_pickled:
            _C.carry_values(engine, name, entry.dtype, shape, bytes(bits_of(stored.read_any(name))))
        else:
            _C.carry_from_file(engine, name, entry.dtype, shape, str(entry.file), stored.data_begin(name))


def carry_value(engine: _C.Engine, name: str, value: torch.Tensor) -> None:
    """Save `value`, as it is now, under `name`."""
    data = bytes(bits_of(value.detach().cpu().contiguous()))
    _C.carry_values(engine, name, stored_dtype(value), list(value.shape), data)


def tell_rest(carried: Sequence[str], ignored: Sequence[str], kind: str) -> None:
    """Lines about tensors of the files that the class `kind` has no place for, or reads past."""
    if carried:
        tell(f"{kind} has no place for {_listed(carried)}: not trained, and saved as in the files")
    if ignored:
        tell(f"{kind} of transformers reads past {_listed(ignored)}: not trained, and not saved, as by it")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'} ({', '.join(names[:_SHOWN])}{more})"
