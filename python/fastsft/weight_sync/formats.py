"""A save's file formats, and a reader for all formats, which checks files before it allocates memory."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from fastsft import _C
from fastsft.ranks.exchange import Message
from fastsft.runtime.regular_files import read_regular
from fastsft.weight_sync import layout
from fastsft.weight_sync.files import RangeFile, Written, dtype_of, header, temporary_name, written_file
from fastsft.weight_sync.layout import some
from fastsft.weight_sync.tensor_stream import Snapshot
from fastsft.weight_sync.verl_pt import VerlPt


class SaveFormat(Protocol):
    """A save file format. It writes a rank's snapshot, and reads the whole state dict."""

    name: str

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> Written:
        """Write this rank's files, and its ranges in shared files, durably under temporary names.

        tag: secret in the temporary names (`temporary_name`).
        """

    def recognises(self, names: list[str]) -> bool:
        """Return True if a manifest's file names fit this format."""

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        """Return the whole tensors by name."""


_NAME = "model.safetensors"


class HuggingFace:
    """The format "hf": one model.safetensors with whole tensors, and config.json in `huggingface`."""

    name = "hf"

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> Written:
        plan = snapshot.plan
        prefix, begins = header(plan.tensors, plan.sizes, {})
        with RangeFile(directory / temporary_name(_NAME, tag), _NAME) as file:
            if snapshot.rank == 0:
                file.write_at(0, prefix)
            for number, part in snapshot.parts.items():
                if part.is_sharded or snapshot.rank == 0:
                    rows = max(1, plan.shapes[number][0]) if part.is_sharded else 1
                    file.write_tensor(begins[number] + part.begin * (plan.sizes[number] // rows), part.tensor)
            return [], file.finish()

    def recognises(self, names: list[str]) -> bool:
        return _NAME in names

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        file = StoredFile(directory / _NAME)
        return {name: file.tensor(name).clone() for name in file.entries}


_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")


class Native:
    """The format "native": a safetensors file for each rank, with the rank's rows.

    The metadata entry `fastsft_rows` has the first row and each tensor's whole shape.
    """

    name = "native"

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> Written:
        name = f"model-{snapshot.rank:05d}-of-{snapshot.world_size:05d}.safetensors"
        tensors, places = [], {}
        for number, (tensor_name, dtype, shape) in enumerate(snapshot.plan.tensors):
            part = snapshot.parts[number]
            tensors.append((tensor_name, dtype, list(part.tensor.shape)))
            places[tensor_name] = [part.begin, shape] if part.is_sharded else None
        parts = [snapshot.parts[number].tensor for number in range(len(tensors))]
        metadata = {"fastsft_rows": json.dumps(places)}
        prefix, begins = header(tensors, [rows.nbytes for rows in parts], metadata)
        with RangeFile(directory / temporary_name(name, tag), name) as file:
            file.write_at(0, prefix)
            for begin, rows in zip(begins, parts, strict=True):
                file.write_tensor(begin, rows)
            (digest,) = _C.join_ranges(file.finish())
        return [written_file(directory, name, tag, digest.size, digest.crc32c)], []

    def recognises(self, names: list[str]) -> bool:
        return any(_SHARD.fullmatch(name) for name in names)

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        files = [StoredFile(directory / name) for name in _ranks_of_one_save(directory, names)]
        places = [_places(file) for file in files]
        for file, own in zip(files, places, strict=True):
            if other := sorted(own.keys() ^ places[0].keys()):
                raise ValueError(f"{file.path}: {other[0]} is not in all files of this save")
        # Check all tensors before allocating memory, because a shape may claim rows that are missing.
        tensors = {name: StoredTensor(name, files, places) for name in places[0]}
        return {name: tensor.read() for name, tensor in tensors.items()}


def _ranks_of_one_save(directory: Path, names: list[str]) -> list[str]:
    """Return the files in rank order. ValueError unless each rank of one save has a file."""
    by_rank = {(int(m[1]), int(m[2])): name for name in names if (m := _SHARD.fullmatch(name))}
    size = max(size for _, size in by_rank)
    if sorted(by_rank) != [(rank, size) for rank in range(size)]:
        listed = some(sorted(by_rank.values()))
        raise ValueError(f"{directory}: expected a file of each of {size} ranks of one save, got {listed}")
    return [by_rank[key] for key in sorted(by_rank)]


def _places(file: StoredFile) -> Message:
    """Return the content of `fastsft_rows`, which maps exactly the file's tensors to their positions."""
    why = ""
    try:
        places = json.loads(file.metadata["fastsft_rows"], object_pairs_hook=_without_duplicates)
    except (KeyError, ValueError, RecursionError) as error:
        places, why = None, f": {error}" if isinstance(error, _DuplicateError) else ""
    if not isinstance(places, dict):
        raise ValueError(
            f'{file.path}: expected "fastsft_rows" in its metadata, an object with the place of each '
            f"tensor{why}"
        )
    if other := sorted(places.keys() ^ file.entries.keys()):
        lacking = "place in its metadata" if other[0] in file.entries else "tensor"
        raise ValueError(f"{file.path}: {other[0]}: expected a tensor and its place, got no {lacking}")
    return places


class _DuplicateError(ValueError):
    pass


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Message:
    content: Message = {}
    for name, value in pairs:
        if name in content:
            raise _DuplicateError(f"{name} is there twice")
        content[name] = value
    return content


FORMATS: dict[str, SaveFormat] = {form.name: form for form in (HuggingFace(), Native(), VerlPt())}


def save_format(name: str) -> SaveFormat:
    """Return the format with this name. For other names, raise ValueError that lists all formats."""
    if name not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(sorted(FORMATS))}, got {name!r}")
    return FORMATS[name]


_TRIES = 5


def read_state_dict(directory: str | Path, *, checksums: bool = True) -> dict[str, torch.Tensor]:
    """Return a save's whole tensors, by name, on the CPU.

    directory: the `local_path` that `fsdp_save_state_dict` got. checksums: True to verify checksums, too, and
    not only the sizes in the manifest. If another save replaces files meanwhile, all files are read again, so
    that all tensors come from the same save. ValueError if the directory is not a complete save, or if it is
    replaced during each of five reads.
    """
    folder = Path(directory)
    for _ in range(_TRIES):
        before = _manifest(folder, checksums)
        try:
            whole = _read(folder)
        except (OSError, ValueError, RuntimeError):  # the C++ core raises RuntimeError for file errors
            if _manifest(folder, False) == before:
                raise
            continue
        if _manifest(folder, False) == before:
            return whole
    raise ValueError(f"{folder}: saved again while it was read, {_TRIES} times; read it between two saves")


def _manifest(folder: Path, checksums: bool) -> tuple[bytes, list[layout.Identity]]:
    """Return a save's manifest, and its files' identities. ValueError unless it is complete."""
    # Read first, so that files that are replaced later have other identities.
    identities = layout.identities(folder)
    faults = layout.problems(folder, checksums)
    try:
        content = b"" if faults else read_regular(folder / layout.MANIFEST, layout.MOST_MANIFEST_BYTES)
    except ValueError as error:  # the next save has removed the manifest
        raise ValueError(f"{folder}: not a complete save: the next one replaces it: {error}") from None
    if faults:
        raise ValueError(f"{folder}: not a complete save: {some(faults, '; ')}")
    return content, identities


def _read(folder: Path) -> dict[str, torch.Tensor]:

    names = [file.name for file in _C.read_manifest(str(folder)).files]
    for form in FORMATS.values():
        if form.recognises(names):
            return form.read(folder, names)
    raise ValueError(f"{folder}: its manifest lists no weights: {some(names)}")


class StoredFile:
    """A memory-mapped safetensors file. Its tensors are views into the file.

    ValueError or RuntimeError, with the path, unless the header is strict JSON without duplicate keys, and
    describes all bytes in the file.
    """

    def __init__(self, path: Path) -> None:
        reader = _C.SafetensorsReader(str(path))
        self.path, self.metadata = path, dict(reader.metadata)
        self.entries = {entry.name: entry for entry in reader.tensors}
        size = path.stat().st_size
        self._data = size - max((entry.end for entry in reader.tensors), default=0)
        self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor as a view into the mapped file. Callers must copy it."""
        entry = self.entries[name]
        dtype = dtype_of(entry.dtype, f"{self.path}: {name}")
        data = self._bytes[self._data + entry.begin : self._data + entry.end]
        aligned = data if data.storage_offset() % dtype.itemsize == 0 else data.clone()
        return aligned.view(dtype).view(entry.shape)


@dataclass
class _Part:
    """The rows from `begin` up to but not including `begin + count`, which are stored in one file."""

    file: StoredFile
    begin: int
    count: int


class StoredTensor:
    """A tensor in several ranks' files.

    Each file has some of the rows, or each file has the whole tensor.
    """

    def __init__(self, name: str, files: Sequence[StoredFile], places: Sequence[Message]) -> None:
        self._name = name
        self._shape: list[int] | None = None  # None if each file has the whole tensor
        self._parts: list[_Part] = []
        self._next = 0
        first = files[0].entries[name]
        for number, (file, place) in enumerate(zip(files, (own[name] for own in places), strict=True)):
            entry, where = file.entries[name], f"{file.path}: {name}"
            if entry.dtype != first.dtype:
                raise ValueError(f"{where}: expected {first.dtype}, as in {files[0].path}, got {entry.dtype}")
            if place is None:
                self._add_whole(number, file, entry.shape, first.shape, where)
            else:
                self._add_rows(number, file, entry.shape, place, where)
        if self._shape is not None and self._next != self._shape[0]:
            folder = files[0].path.parent
            raise ValueError(f"{folder}: {name}: expected {self._shape[0]} rows, got {self._next}")

    def read(self) -> torch.Tensor:
        """Return the whole tensor in newly allocated memory."""
        if self._shape is None:
            return self._parts[0].file.tensor(self._name).clone()
        whole = self._parts[0].file.tensor(self._name).new_empty(self._shape)
        for part in self._parts:
            whole[part.begin : part.begin + part.count] = part.file.tensor(self._name)
        return whole

    def _add_whole(
        self, number: int, file: StoredFile, shape: list[int], first: list[int], where: str
    ) -> None:
        if self._shape is not None or shape != first:
            expected = f"rows of {self._shape}" if self._shape is not None else f"all of {first}"
            raise ValueError(f"{where}: expected {expected}, as the ranks before, got all of {shape}")
        if number == 0:
            self._parts.append(_Part(file, 0, 0))

    def _add_rows(self, number: int, file: StoredFile, rows: list[int], place: object, where: str) -> None:
        """Add the next file's rows. ValueError unless they follow the earlier files' rows."""
        begin, shape = _place(place, where)
        known = shape if number == 0 else self._shape
        fits = shape == known and len(rows) == len(shape) and rows[1:] == shape[1:]
        if not fits or (rows[0] and (begin != self._next or begin + rows[0] > shape[0])):
            got = f"rows {begin} and more of shape {rows}"
            raise ValueError(f"{where}: expected what follows {self._next} rows of {known}, got {got}")
        self._shape = shape
        self._parts.append(_Part(file, begin, rows[0]))
        self._next += rows[0]


def _place(place: object, where: str) -> tuple[int, list[int]]:
    """Parse [first row, whole shape]. ValueError for other content."""
    begin, shape = cast("tuple[Any, Any]", place if isinstance(place, list) and len(place) == 2 else (0, 0))
    if isinstance(shape, list) and shape and all(map(_is_size, [begin, *shape])):
        return begin, shape
    raise ValueError(f"{where}: expected [first row, shape] as its place, got {str(place)[:80]}")


def _is_size(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 48
