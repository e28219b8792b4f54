"""The tensors of a model directory by name, read one at a time: safetensors, and pickled weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastsft.model.config import has_safetensors, tell_of_two_forms
from fastsft.model.weights import pickled_files, pickled_tensors
from fastsft.runtime.regular_files import open_regular

if TYPE_CHECKING:
    import torch

    from fastsft import _C

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}  # that are read
# Types of tensors that are no weights: with these they are carried.
OTHER_DTYPES = {
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
BITS = {
    **dict.fromkeys(OTHER_DTYPES, 8), **dict.fromkeys(("F64", "I64"), 64),
    **dict.fromkeys(("F32", "I32"), 32), **dict.fromkeys(("F16", "BF16", "I16"), 16),
}  # fmt: skip
BLOCK = 1 << 22  # elements that are looked at together
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}  # bytes of an element
# Of a unit: name, digest (None: not known), elements, and tensors: name, shape, first element.
UnitLayout = tuple[str, str | None, int, list[tuple[str, list[int], int]]]
_OF_TORCH = {f"torch.{name}": stored for stored, name in {**DTYPES, **OTHER_DTYPES}.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the header of its file has it.

    dtype: in the words of safetensors, BF16. begin: its first byte in the data of a safetensors file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int = 0

    @property
    def count(self) -> int:
        """Of its elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class StoredWeights:
    """Headers of all weight files. files: their paths; tensors: by name; problems: a line for each fault.

    Files that cannot be read are among the problems. ValueError where no weights are there.
    """

    def __init__(self, directory: str | Path) -> None:
        from fastsft import _C

        self.directory = Path(directory)
        tell_of_two_forms(directory)
        self.is_pickled = not has_safetensors(directory)
        paths = pickled_files(self.directory) if self.is_pickled else _C.weight_files(str(directory))
        self.files = [Path(path) for path in paths]
        self.tensors: dict[str, StoredTensor] = {}
        self.problems: list[str] = []
        self._open: tuple[Path, _C.SafetensorsReader | dict[str, torch.Tensor]] | None = None
        for file in self.files:
            self._list(file)

    def _list(self, file: Path) -> None:
        try:
            found = self._entries(file)
        except (ValueError, RuntimeError, OSError) as error:
            self.problems.append(str(error))
            return
        self.problems += [
            f"{file}: {each.name} is in two files" for each in found if each.name in self.tensors
        ]
        self.tensors.update({each.name: each for each in found})

    def _entries(self, file: Path) -> list[StoredTensor]:
        content = self._content(file)
        if isinstance(content, dict):
            return [
                StoredTensor(name, _OF_TORCH.get(str(each.dtype), str(each.dtype)), tuple(each.shape), file)
                for name, each in content.items()
            ]
        return [
            StoredTensor(each.name, each.dtype, tuple(each.shape), file, int(each.begin))
            for each in content.tensors
        ]

    def _content(self, file: Path) -> _C.SafetensorsReader | dict[str, torch.Tensor]:
        """One file is open at a time: tensors of a file follow each other."""
        from fastsft import _C

        if self._open is None or self._open[0] != file:
            self._open = None
            content = dict(pickled_tensors(file)) if self.is_pickled else _C.SafetensorsReader(str(file))
            self._open = file, content
        return self._open[1]

    def read(self, name: str) -> torch.Tensor:
        """The values of one tensor, in memory of their own, with the type of the file.

        ValueError for a type that no weight has.
        """

        entry = self.tensors[name]
        if entry.dtype not in DTYPES:
            raise ValueError(f"{entry.file}: {name}: expected one of {', '.join(DTYPES)}, got {entry.dtype}")
        return self.read_any(name)

    def read_any(self, name: str) -> torch.Tensor:
        """`read`, also of integers and other tensors that are no weights."""
        entry = self.tensors[name]
        if entry.dtype not in {**DTYPES, **OTHER_DTYPES}:
            raise ValueError(f"{entry.file}: {name}: is {entry.dtype}, which fastsft does not read")
        content = self._content(entry.file)
        if isinstance(content, dict):
            return content[name].detach().contiguous()
        return as_tensor(content.bytes(name), entry.dtype).reshape(entry.shape)

    def data_begin(self, name: str) -> int:
        """The first byte of a tensor in its safetensors file."""
        entry = self.tensors[name]
        with open_regular(entry.file, "a file of weights") as file:
            return 8 + int.from_bytes(file.read(8), "little") + entry.begin

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """The values of one tensor, flat, in parts of at most BLOCK elements: memory does not depend on it.

        ValueError for a type that no weight has, and for a file that became shorter.
        """
        import torch

        entry = self.tensors[name]
        if entry.dtype not in DTYPES or self.is_pickled:
            yield from torch.split(self.read(name).reshape(-1), BLOCK)
            return
        size = WIDTHS[entry.dtype]
        begin = self.data_begin(name)
        with open_regular(entry.file, "a file of weights") as file:
            file.seek(begin)
            for first in range(0, entry.count, BLOCK):
                wanted = min(BLOCK, entry.count - first) * size
                data = file.read(wanted)
                if len(data) != wanted:
                    raise ValueError(f"{entry.file}: {name}: the file became shorter while it was read")
                yield as_tensor(data, entry.dtype)

    def is_same(self, name: str, other: StoredWeights, other_name: str) -> bool:
        """True if two tensors have the same shape, type and bits."""
        ours, theirs = self.tensors[name], other.tensors[other_name]
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return False
        pairs = zip(self.blocks(name), other.blocks(other_name), strict=True)
        return all(bits_of(mine) == bits_of(yours) for mine, yours in pairs)


def as_tensor(data: bytes, dtype: str) -> torch.Tensor:
    """The flat tensor of the bytes of a safetensors file, without a copy; nobody writes to it."""
    import torch

    kind = getattr(torch, {**DTYPES, **OTHER_DTYPES}[dtype])
    if not data:
        return torch.empty(0, dtype=kind)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(data, dtype=kind)


def bits_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def extremes(parts: Iterable[torch.Tensor]) -> tuple[int, float]:
    """Values of the parts of a tensor that are not finite, and the largest magnitude of the others."""
    bad, most = 0, 0.0
    for part in parts:
        finite = part.isfinite()
        bad += int(part.numel() - int(finite.sum()))
        if bool(finite.any()):
            most = max(most, float(part[finite].abs().max()))
    return bad, most


def differences(shapes: Iterable[tuple[str, Sequence[int]]], stored: StoredWeights) -> list[str]:
    """A line for each tensor that is missing, of another shape or type, or has no place in the model.

    shapes: of the model's own tensors, by name. A head next to tied weights, and tables of rope that old
    releases of transformers saved, have a place.
    """
    expected = {name: tuple(shape) for name, shape in shapes}
    problems = [f"missing: {name}" for name in expected if name not in stored.tensors]
    for name, entry in stored.tensors.items():
        if name not in expected:
            if name != HEAD and not name.endswith("rotary_emb.inv_freq"):
                problems.append(f"config.json has no place for {name}")
        elif entry.shape != expected[name]:
            problems.append(f"{name}: expected shape {list(expected[name])}, got {list(entry.shape)}")
        elif entry.dtype not in DTYPES:
            problems.append(f"{name}: expected one of {', '.join(DTYPES)}, got {entry.dtype}")
    return problems


class WeightForm(Protocol):
    """Weight files next to what a model expects of them. names: of its tensors, each with the one there."""

    names: dict[str, str]

    def problems(self) -> list[str]:
        """A line for each tensor that is missing, of another shape or type, or has no place in the model."""

    def second_copies(self) -> list[tuple[str, str]]:
        """Names in the files of tied tensors: the one that is read, and another that is to be the same."""

    def unneeded(self) -> list[str]:
        """Tensors that the model computes itself."""


class StoredForm:
    """A WeightForm of a native model. shapes: of its tensors; ties: head and embedding are one."""

    def __init__(
        self, shapes: Iterable[tuple[str, Sequence[int]]], stored: StoredWeights, *, ties: bool
    ) -> None:
        self._shapes, self._stored, self._ties = list(shapes), stored, ties
        self.names = {name: name for name, _ in self._shapes if name in stored.tensors}

    def problems(self) -> list[str]:
        """A line for each tensor that is missing, of another shape or type, or has no place in the model."""
        return differences(self._shapes, self._stored)

    def second_copies(self) -> list[tuple[str, str]]:
        """Names in the files of tied tensors: the one that is read, and another with the same values."""
        there = EMBEDDING in self._stored.tensors and HEAD in self._stored.tensors
        return [(EMBEDDING, HEAD)] if self._ties and there else []

    def unneeded(self) -> list[str]:
        """Tensors that the model computes itself."""
        return [name for name in self._stored.tensors if name.endswith("rotary_emb.inv_freq")]
