"""The weight files of a directory next to what a generic model expects of them."""

from __future__ import annotations

from fastsft.model.generic.called_model import GenericModel
from fastsft.model.generic.weights import sort_names
from fastsft.model.stored_weights import DTYPES, StoredWeights, UnitLayout


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
