"""Folders of torch.distributed.checkpoint, which hold FSDP's shards: a tensor at a time, no code runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastsft.runtime.plain_pickle import MOST_BYTES, Inert, Maker, read_pickle
from fastsft.runtime.regular_files import read_regular
from fastsft.runtime.torch_archive import read_archive, tensor_names

_WHAT = "metadata of torch.distributed.checkpoint"
_KINDS = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"


class _Metadata(Inert):
    """`state_dict_metadata`: entries by name; `storage_data`: the place of each chunk."""


class _Tensor(Inert):
    """`size`, `properties` and `chunks` of a tensor."""


class _Index(Inert):
    """`fqn`, the tensor's name, and `offset`, the first element of a chunk."""


_MAKERS = {
    f"{_KINDS}.Metadata": Maker(_Metadata),
    f"{_KINDS}.TensorStorageMetadata": Maker(_Tensor),
    f"{_KINDS}.MetadataIndex": Maker(_Index),
} | {
    name: Maker(Inert)
    for name in (
        f"{_KINDS}.BytesStorageMetadata", f"{_KINDS}.ChunkStorageMetadata", f"{_KINDS}.TensorProperties",
        f"{_KINDS}._MEM_FORMAT_ENCODING", f"{_KINDS}.StorageMeta", f"{_FILES}._StorageInfo",
        f"{_FILES}._StoragePrefix", "pathlib.PosixPath", "pathlib.Path",
        "pathlib._local.PosixPath", "pathlib._local.Path",  # names of Python 3.13
    )
}  # fmt: skip


@dataclass(frozen=True)
class _Chunk:
    """Part of a tensor: its first element, its sizes, and the archive that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    begin: int
    length: int


class ShardedFiles:
    """The tensors of a folder by name. ValueError, naming the folder, for a folder of anything else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / ".metadata"
        try:
            self._tensors, places = _entries(path)
            self._chunks = {
                name: self._places(name, tensor, places) for name, tensor in self._tensors.items()
            }
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{path}: expected {_WHAT} ({_first_line(error)})") from error

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a whole tensor into the CPU's memory. ValueError when it is not there or cannot be read."""
        if name not in self._tensors:
            raise ValueError(f"{self.folder}: expected a tensor {name}, found none")
        size, dtype = _size_and_dtype(self._tensors[name])
        chunks = self._chunks[name]
        try:
            # All archives first: their sizes bound the memory of the whole.
            parts = [(chunk, _read(chunk, dtype)) for chunk in chunks]
            if sum(part.numel() for _, part in parts) != torch.Size(size).numel():
                raise ValueError("its chunks do not make the whole")
            whole, is_there = torch.empty(size, dtype=dtype), torch.zeros(size, dtype=torch.bool)
            for chunk, part in parts:
                spans = zip(chunk.offsets, chunk.sizes, strict=True)
                place = tuple(slice(begin, begin + count) for begin, count in spans)
                whole[place], is_there[place] = part, True
            if not bool(is_there.all()):
                raise ValueError("its chunks overlap")
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise ValueError(f"{self.folder}: {name} cannot be read ({_first_line(error)})") from error
        return whole

    def _places(self, name: str, tensor: _Tensor, places: _Places) -> list[_Chunk]:
        return [
            _Chunk(offsets, sizes, *self._place(name, places[name, offsets]))
            for offsets, sizes in _disjoint(tensor)
        ]

    def _place(self, name: str, info: dict[str, Any]) -> tuple[Path, int, int]:
        file, begin, length = info["relative_path"], info["offset"], info["length"]
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{name}: expected names of files in the folder, got {file!r}")
        if type(begin) is not int or type(length) is not int or info.get("transform_descriptors"):
            raise ValueError(f"{name}: expected a place in {file} without transforms")
        return self.folder / file, begin, length


_Places = dict[tuple[str, tuple[int, ...]], dict[str, Any]]


def _entries(path: Path) -> tuple[dict[str, _Tensor], _Places]:
    """Read `.metadata`: the tensors by name, and the places of chunks by name and first element."""
    known = tensor_names()
    found = read_pickle(
        read_regular(path, MOST_BYTES, _WHAT), lambda name: _MAKERS.get(name) or known.get(name)
    )
    if not isinstance(found, _Metadata):
        raise ValueError(f"it is a {type(found).__name__}")
    kinds = found.fields["state_dict_metadata"]
    places = {
        (index.fields["fqn"], tuple(index.fields.get("offset") or ())): info.fields
        for index, info in (found.fields.get("storage_data") or {}).items()
    }
    return {name: kind for name, kind in kinds.items() if isinstance(kind, _Tensor)}, places


def _size_and_dtype(tensor: _Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    dtype = tensor.fields["properties"].arguments[-1][0]
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no dtype")
    return _counts(tensor.fields["size"]), dtype


def _disjoint(tensor: _Tensor) -> Iterable[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return (offsets, sizes) of the chunks, which are inside the tensor, each at its own place."""
    size, _ = _size_and_dtype(tensor)
    found = [
        (_counts(each.fields["offsets"]), _counts(each.fields["sizes"])) for each in tensor.fields["chunks"]
    ]
    for offsets, sizes in found:
        if any(begin + count > end for begin, count, end in zip(offsets, sizes, size, strict=True)):
            raise ValueError(f"a chunk at {offsets} of {sizes} is not inside {size}")
    if len({offsets for offsets, _ in found}) != len(found):
        raise ValueError("two chunks begin at the same element")
    return found


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("a size has something else than numbers from 0 on")
    return values


def _read(chunk: _Chunk, dtype: torch.dtype) -> torch.Tensor:
    part = read_archive(chunk.path, begin=chunk.begin, length=chunk.length)
    if not isinstance(part, torch.Tensor) or part.dtype != dtype or tuple(part.shape) != chunk.sizes:
        raise ValueError(f"{chunk.path.name}: expected a chunk of {dtype} and size {list(chunk.sizes)}")
    return part


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
