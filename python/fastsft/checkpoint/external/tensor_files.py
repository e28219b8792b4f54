"""Safe readers, which run no code, for torch's files: AdamW's state, and FSDP's sharded tensors.

AdamW's state is stored by parameter number in optimizer.pt, by parameter name in optimizer.bin, or, for
FSDP's shards, in a folder of torch.distributed.checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastsft.checkpoint.external.transformers_checkpoint import load_plain
from fastsft.checkpoint.external.wrapped import clean_name
from fastsft.runtime.plain_pickle import MOST_BYTES, Inert, Maker, read_pickle
from fastsft.runtime.regular_files import read_regular
from fastsft.runtime.torch_archive import read_archive, tensor_names

MOMENTS = ("exp_avg", "exp_avg_sq")
_KEYS = ("state", "param_groups")
_OPTIMIZER = "the state of torch's AdamW"
_WHAT = "metadata of torch.distributed.checkpoint"
_KINDS = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_STATE = "optimizer.state."  # prefix of moment names in a sharded checkpoint
_OTHER = "only AdamW's state is carried over; train from the weights with --model_name_or_path"


class OptimizerFile:
    """AdamW's moments of each parameter by name, memory-mapped from the file `path`.

    order: (name, True if weight decay applies) for each trained parameter, in the model's order. ValueError,
    with the path, if the file does not hold AdamW's state for these parameters.
    """

    def __init__(self, path: Path, order: Sequence[tuple[str, bool]]) -> None:
        self._path = path
        self._state, self._groups = self._checked(load_plain(path, _OPTIMIZER))
        self._by_name = self._named() if path.suffix == ".bin" else self._numbered(order)
        for name, _ in order:
            if name not in self._by_name:
                raise ValueError(
                    f"{path}: {name}: expected its exp_avg and exp_avg_sq, found no state of it (torch "
                    f"keeps none of a parameter that no step has trained yet, such as an expert); {_OTHER}"
                )
        for name, entry in self._by_name.items():
            self._check_entry(name, entry)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the parameter group with weight decay, under the names of fastsft's arguments."""
        return settings_of(self._groups[0]) if self._groups else {}

    def step(self) -> int:
        """Return how many updates there were. ValueError if the number differs between parameters."""
        return common_step(self._path, {name: entry["step"] for name, entry in self._by_name.items()})

    def tensors(self, moment: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) of one moment, "exp_avg" or "exp_avg_sq", for every parameter."""
        for name, entry in self._by_name.items():
            yield name, entry[moment]

    def _checked(self, content: object) -> tuple[Mapping[Any, Any], list[Mapping[str, Any]]]:
        state, groups = (content.get(key) if isinstance(content, dict) else None for key in _KEYS)
        if not isinstance(state, dict) or not isinstance(groups, list) or not all(map(_is_group, groups)):
            raise ValueError(f"{self._path}: expected {_OPTIMIZER}, a dictionary with {' and '.join(_KEYS)}")
        if not all(isinstance(entry, dict) for entry in state.values()):
            raise ValueError(f"{self._path}: expected a dictionary for the state of every parameter")
        return state, groups

    def _numbered(self, order: Sequence[tuple[str, bool]]) -> dict[str, Any]:
        """Return the state of each parameter by name.

        transformers' Trainer numbers the parameters with weight decay first.
        """
        named: dict[str, Any] = {}
        expected = [[name for name, decays in order if decays is kind] for kind in (True, False)]
        groups = [group["params"] for group in self._groups]
        if [len(names) for names in groups] != [len(names) for names in expected]:
            raise ValueError(
                f"{self._path}: expected groups of {len(expected[0])} parameters with weight decay and "
                f"{len(expected[1])} without, as the model has them, got groups of "
                f"{', '.join(str(len(names)) for names in groups) or 'none'}; it is of another model, or of "
                "a script that grouped them in its own way"
            )
        for names, numbers in zip(expected, groups, strict=True):
            named |= {
                name: self._state[n] for name, n in zip(names, numbers, strict=True) if n in self._state
            }
        return named

    def _named(self) -> dict[str, Any]:
        if not all(isinstance(name, str) for name in self._state):
            raise ValueError(f"{self._path}: expected the state of parameters by their names")
        return {clean_name(name): entry for name, entry in self._state.items()}

    def _check_entry(self, name: str, entry: Mapping[str, Any]) -> None:
        keys = {str(key) for key in entry}
        if keys != {"step", *MOMENTS} or not all(isinstance(entry[key], torch.Tensor) for key in MOMENTS):
            raise ValueError(
                f"{self._path}: {name}: expected AdamW's step, exp_avg and exp_avg_sq, got "
                f"{', '.join(sorted(keys)) or 'nothing'}; {_OTHER}"
            )


def _is_group(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("params"), list | tuple)


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter group's settings, under the names of fastsft's arguments."""
    betas = group.get("betas")
    first, second = betas if isinstance(betas, list | tuple) and len(betas) == 2 else (None, None)
    values = {
        "learning_rate": group.get("initial_lr"), "weight_decay": group.get("weight_decay"),
        "adam_beta1": first, "adam_beta2": second, "adam_epsilon": group.get("eps"),
    }  # fmt: skip
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def common_step(path: Path, steps: Mapping[str, Any]) -> int:
    """Return the common update count. ValueError if parameters have different numbers."""
    counts = {name: _count(value) for name, value in steps.items()}
    different = sorted({count for count in counts.values() if count is not None})
    if len(different) != 1 or None in counts.values():
        raise ValueError(
            f"{path}: expected one number of updates for all parameters, got "
            f"{', '.join(map(str, different)) or 'none'}; parameters that some steps did not train are not "
            "carried over"
        )
    return different[0]


def _count(value: object) -> int | None:
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    if not isinstance(value, int | float) or not 0 <= value < 1 << 62 or not float(value).is_integer():
        return None
    return int(value)


class _Metadata(Inert):
    """A substitute for Metadata.

    Its fields are `state_dict_metadata` (entries by name) and `storage_data` (location of each chunk).
    """


class _Tensor(Inert):
    """A substitute for TensorStorageMetadata. Fields: `size`, `properties` and `chunks` of a tensor."""


class _Index(Inert):
    """A substitute for MetadataIndex. Fields: `fqn` (tensor name) and `offset` (first element of a chunk)."""


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
        "pathlib._local.PosixPath", "pathlib._local.Path",  # names in Python 3.13
    )
}  # fmt: skip


@dataclass(frozen=True)
class _Chunk:
    """A part of a tensor: offsets of the first element, sizes, and the byte range in the file `path`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    begin: int
    length: int


class ShardedFiles:
    """The tensors in a torch.distributed.checkpoint folder, by name.

    ValueError, with the path, for other folders.
    """

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
        """Return a whole tensor on the CPU. ValueError if it is missing or cannot be read."""
        if name not in self._tensors:
            raise ValueError(f"{self.folder}: expected a tensor {name}, found none")
        size, dtype = _size_and_dtype(self._tensors[name])
        chunks = self._chunks[name]
        try:
            # Chunks are read before the whole tensor is allocated, so that file sizes limit the memory.
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
    """Read `.metadata`. Return the tensors by name, and chunk locations by tensor name and first element."""
    known = tensor_names()
    metadata = read_pickle(
        read_regular(path, MOST_BYTES, _WHAT), lambda name: _MAKERS.get(name) or known.get(name)
    )
    if not isinstance(metadata, _Metadata):
        raise ValueError(f"it is a {type(metadata).__name__}")
    kinds = metadata.fields["state_dict_metadata"]
    places = {
        (index.fields["fqn"], tuple(index.fields.get("offset") or ())): info.fields
        for index, info in (metadata.fields.get("storage_data") or {}).items()
    }
    return {name: kind for name, kind in kinds.items() if isinstance(kind, _Tensor)}, places


def _size_and_dtype(tensor: _Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    dtype = tensor.fields["properties"].arguments[-1][0]
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no dtype")
    return _counts(tensor.fields["size"]), dtype


def _disjoint(tensor: _Tensor) -> Iterable[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return (offsets, sizes) of each chunk.

    ValueError if a chunk reaches outside the tensor, or if two chunks begin at the same element.
    """
    size, _ = _size_and_dtype(tensor)
    places = [
        (_counts(chunk.fields["offsets"]), _counts(chunk.fields["sizes"]))
        for chunk in tensor.fields["chunks"]
    ]
    for offsets, sizes in places:
        if any(begin + count > end for begin, count, end in zip(offsets, sizes, size, strict=True)):
            raise ValueError(f"a chunk at {offsets} of {sizes} is not inside {size}")
    if len({offsets for offsets, _ in places}) != len(places):
        raise ValueError("two chunks begin at the same element")
    return places


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


class ShardedOptimizer:
    """AdamW's state in a folder that FSDP saved, with the methods of OptimizerFile.

    `settings` is empty, because the folder stores settings as pickles, which are not read.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.settings: dict[str, Any] = {}
        self._files, self._names = ShardedFiles(folder), names

    def step(self) -> int:
        steps = {name: self._files.tensor(f"{_STATE}{name}.step") for name in self._names}
        return common_step(self._files.folder, steps)

    def tensors(self, moment: str) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._names:
            yield name, self._files.tensor(f"{_STATE}{name}.{moment}")
