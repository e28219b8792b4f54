"""Weight files in the generic engine: matched by name to the model's tensors, loaded, and copied into saves.

A name in the files may have the base model's prefix or not, may be a tied tensor's other name, and may be
renamed when transformers loads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.model.generic.generic_model import GenericModel
from fastsft.model.generic.peft_names import base_name
from fastsft.model.generic.stored_tensors import buffer_names, name_in_memory, whole_model
from fastsft.model.generic.units import Unit
from fastsft.model.stored_weights import DTYPES, StoredWeights, UnitLayout, bits_of, stored_dtype
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.messages import tell, warn_once

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_SHOWN = 3


def load_generic_weights(
    engine: _C.Engine, model: PreTrainedModel, units: list[Unit], directory: str | Path
) -> None:
    """Fill the engine's master weights, tensor by tensor. Collective.

    ValueError, with a list, for tensors that are missing or unknown, or have a wrong shape.
    """
    agreement = AllOrNone(f"loading {directory}")
    agreement.attempt(lambda: _fill(_C.WeightLoader(engine), model, units, directory))
    agreement.settle(None)
    _C.publish_weights(engine)


def _fill(loader: _C.WeightLoader, model: PreTrainedModel, units: list[Unit], directory: str | Path) -> None:
    stored = StoredWeights(directory)
    if stored.problems:
        raise ValueError(stored.problems[0])
    match = match_names(model, units, stored.tensors)
    for name, file_name in match.names.items():
        entry = stored.tensors[file_name]
        loader.set(name, stored.read(file_name), str(entry.file))
    for name in match.tables:
        warn_once(f"{name} of the files is a table that the model computes itself: not read")
    infos = (info for unit in units for info in unit.parameters if not info.is_adapter)
    expected = {tensor.name for info in infos for tensor in info.tensors}
    # If tensors are missing, the loader's error lists the unknown tensors, too: they may be the missing
    # tensors under other names.
    unknown = match.carried if expected - match.names.keys() else []
    for name in (*match.without_place, *unknown):
        if stored.tensors[name].dtype in DTYPES:
            loader.set(name, stored.read(name), str(stored.tensors[name].file))
    loader.finish(str(directory))


@dataclass
class NameMatch:
    """The tensors of the weight files, sorted by their use.

    names: maps names in the model to names in the files.
    buffers: the same for integer buffers.
    copies: pairs of a file name in `names` and a further file name for the same tied tensor.
    tables: tensors that the model computes itself.
    ignored: names that transformers ignores.
    carried: names that the model does not have; a save copies these tensors unchanged.
    without_place: second names for tensors in `names`.
    missing: integer buffers that are in no file.
    """

    names: dict[str, str]
    buffers: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)
    without_place: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def match_names(model: PreTrainedModel, units: list[Unit], stored: Mapping[str, object]) -> NameMatch:
    """Match all names in the weight files to the model's tensors.

    stored: the files' tensors, by name.
    """
    match = NameMatch(tensor_names(model, units, stored))
    prefix, tied = _prefix(model), aliases(model, units)
    for name, in_files in buffer_names(model).items():
        spelling = next((name for name in spellings(in_files, prefix) if name in stored), None)
        if spelling is None:
            match.missing.append(in_files)
        else:
            match.buffers[name] = spelling
    patterns = _ignored_patterns(model)
    used = {*match.names.values(), *match.buffers.values()}
    for name in stored:
        if name in used:
            continue
        in_memory = [*spellings(name, prefix), *spellings(name_in_memory(model, name), prefix)]
        owner = next((match.names.get(tied[alias]) for alias in in_memory if alias in tied), None)
        if owner is not None:
            match.copies.append((owner, name))
        elif any(pattern.search(name) for pattern in patterns):
            match.ignored.append(name)
        elif is_table(model, name, prefix):
            match.tables.append(name)
        elif any(spelling in match.names for spelling in in_memory):
            match.without_place.append(name)
        else:
            match.carried.append(name)
    return match


def _ignored_patterns(model: PreTrainedModel) -> list[re.Pattern[str]]:
    """Return the name patterns that transformers ignores; none for a text decoder."""
    if whole_model(model) is not None:
        return []
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return [re.compile(pattern) for pattern in patterns]


def _prefix(model: PreTrainedModel) -> str:
    return f"{getattr(model, 'base_model_prefix', '')}."


def tensor_names(model: PreTrainedModel, units: list[Unit], stored: Mapping[str, object]) -> dict[str, str]:
    """Map the model's tensor names that are in `stored` to the names in `stored`."""
    prefix = _prefix(model)
    by_memory = {name_in_memory(model, name): name for name in stored}
    aliases_of: dict[str, list[str]] = {}
    for alias, name in aliases(model, units).items():
        aliases_of.setdefault(name, []).append(alias)
    names = {}
    for info in (info for unit in units for info in unit.parameters):
        for tensor in info.stored:
            candidates = [tensor.name]
            if len(info.stored) == 1 and tensor.within is None:
                candidates += [info.name, *aliases_of.get(info.name, ()), by_memory.get(info.name, info.name)]
            spelled = (name for candidate in candidates for name in spellings(candidate, prefix))
            in_files = next((name for name in spelled if name in stored), None)
            if in_files is not None:
                names[tensor.name] = in_files
    return names


def spellings(name: str, prefix: str) -> list[str]:
    """Return the names that `name` may have in files: with or without the base model's prefix."""
    return [name, name.removeprefix(prefix), prefix + name]


def aliases(model: PreTrainedModel, units: list[Unit]) -> dict[str, str]:
    """Map tied tensors' further names to the name under which the tensor is trained and saved."""
    names_of: dict[int, dict[str, str]] = {}
    for unit in units:
        for info in unit.parameters:
            for module, short in info.owners:
                names_of.setdefault(id(module), {})[short] = info.name
    names = {}
    for prefix, module in model.named_modules():
        for short, name in names_of.get(id(module), {}).items():
            alias = base_name(f"{prefix}.{short}" if prefix else short)
            if alias != name:
                names[alias] = name
    return names


def is_table(model: PreTrainedModel, name: str, prefix: str) -> bool:
    """Return True for a buffer that the model computes itself.

    Some transformers releases have saved such buffers.
    """
    buffers = {buffer for buffer, _ in model.named_buffers()}
    return any(spelling in buffers for spelling in spellings(name, prefix)) or name.endswith(
        (".attn.bias", ".attn.masked_bias")
    )


class GenericForm:
    """Compares weight files with a generic engine model (see WeightForm).

    meta: the model without weights.
    """

    def __init__(self, meta: GenericModel, stored: StoredWeights) -> None:
        self._stored, self._shapes = stored, dict(parameter_shapes(meta))
        self.match = match_names(meta.model, meta.units, stored.tensors)
        self.names = self.match.names

    def problems(self) -> list[str]:
        missing = [name for name in self._shapes if name not in self.names]
        problems = [f"missing: {name}" for name in (*missing, *self.match.missing)]
        for name, in_files in self.names.items():
            entry = self._stored.tensors[in_files]
            if list(entry.shape) != self._shapes[name]:
                problems.append(f"{in_files}: expected shape {self._shapes[name]}, got {list(entry.shape)}")
            elif entry.dtype not in DTYPES:
                problems.append(f"{in_files}: expected one of {', '.join(DTYPES)}, got {entry.dtype}")
        return problems + [f"config.json has no place for {name}" for name in self.match.without_place]

    def second_copies(self) -> list[tuple[str, str]]:
        return self.match.copies

    def unneeded(self) -> list[str]:
        return [*self.match.tables, *self.match.ignored]


def parameter_shapes(meta: GenericModel) -> list[tuple[str, list[int]]]:
    """Return all file tensors' names and shapes in unit order, without adapters."""
    infos = (info for unit in meta.units for info in unit.parameters if not info.is_adapter)
    return [(tensor.name, list(tensor.shape)) for info in infos for tensor in info.tensors]


def unit_layouts(meta: GenericModel) -> list[UnitLayout]:
    """Return the trained units' layouts, without digests."""
    layouts: list[UnitLayout] = []
    for (at, part), offsets in zip(meta.parts(trained=True), meta.layout.places, strict=True):
        sizes = {tensor.name: tensor.numel for info in part for tensor in info.tensors}
        size = max((first + sizes[name] for name, _, first in offsets), default=0)
        tensors = [(name, list(shape), first) for name, shape, first in offsets]
        layouts.append((meta.units[at].name, None, size, tensors))
    return layouts


def carry_from_files(engine: _C.Engine, stored: StoredWeights, names: Iterable[str]) -> None:
    """Make saves include the tensors in `stored` whose names are in `names`.

    Safetensors files stay open and are read at each save. Pickled tensors are kept in memory.
    """
    for name in names:
        entry = stored.tensors[name]
        shape = list(entry.shape)
        if stored.is_pickled:
            _C.carry_values(engine, name, entry.dtype, shape, bytes(bits_of(stored.read_any(name))))
        else:
            _C.carry_from_file(engine, name, entry.dtype, shape, str(entry.file), stored.data_begin(name))


def carry_value(engine: _C.Engine, name: str, value: torch.Tensor) -> None:
    """Make saves include a copy of `value` under the name `name`."""
    data = bytes(bits_of(value.detach().cpu().contiguous()))
    _C.carry_values(engine, name, stored_dtype(value), list(value.shape), data)


def tell_rest(carried: Sequence[str], ignored: Sequence[str], kind: str) -> None:
    """Print notices about file tensors that the class `kind` does not have or ignores."""
    if carried:
        tell(f"{kind} has no place for {_listed(carried)}: not trained, and saved as in the files")
    if ignored:
        tell(f"{kind} of transformers reads past {_listed(ignored)}: not trained, and not saved, as by it")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'} ({', '.join(names[:_SHOWN])}{more})"
