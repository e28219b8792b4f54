"""File formats of a save, and the reader of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Protocol

import torch

from fastsft import _C
from fastsft.runtime.regular_files import check_regular
from fastsft.weight_sync import layout
from fastsft.weight_sync.files import RangeFile, Written, header, temporary_name, written_file
from fastsft.weight_sync.interfaces import Message
from fastsft.weight_sync.tensor_stream import Snapshot
from fastsft.weight_sync.verl_pt import VerlPt


class SaveFormat(Protocol):
    """Conversion of a snapshot into files, and of files into the whole state dict."""

    name: str

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> Written:
        """This rank's files, and its ranges of files of several ranks; durable under names with `tag`."""

    def recognises(self, names: list[str]) -> bool:
        """True if a manifest's file names are of this format."""

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        """The whole tensors by name."""


_NAME = "model.safetensors"


class HuggingFace:
    """A file that transformers and safetensors load, with config.json in `huggingface/` next to it."""

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
        from safetensors.torch import load_file

        loaded: dict[str, torch.Tensor] = load_file(directory / _NAME)
        return loaded


_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")


class Native:
    """Local rows; `fastsft_rows` of the metadata says which, and the whole shape."""

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
            file.finish()
        return [written_file(directory, name, tag)], []

    def recognises(self, names: list[str]) -> bool:
        return any(_SHARD.fullmatch(name) for name in names)

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        from safetensors import safe_open

        whole: dict[str, torch.Tensor] = {}
        rows: dict[str, int] = {}  # of each sharded tensor, those that came: the next one's number
        for name in sorted(name for name in names if _SHARD.fullmatch(name)):
            check_regular(directory / name, "a file of weights")
            with safe_open(directory / name, "pt") as file:
                for tensor_name, place in _places(file.metadata(), directory / name).items():
                    part = file.get_tensor(tensor_name)
                    if place is None:
                        whole.setdefault(tensor_name, part)
                        continue
                    where = f"{directory / name}: {tensor_name}"
                    rows[tensor_name] = _put(whole, tensor_name, part, place, rows.get(tensor_name, 0), where)
        for name, count in rows.items():
            if count != whole[name].shape[0]:
                raise ValueError(f"{directory}: {name}: expected {whole[name].shape[0]} rows, got {count}")
        return whole


def _places(metadata: dict[str, str] | None, path: Path) -> Message:
    try:
        places = json.loads((metadata or {})["fastsft_rows"])
        if isinstance(places, dict):
            return places
    except (KeyError, ValueError, RecursionError):
        pass
    raise ValueError(
        f'{path}: expected "fastsft_rows" in its metadata, an object with the place of each tensor'
    )


def _put(
    whole: dict[str, torch.Tensor], name: str, part: torch.Tensor, place: object, expected: int, where: str
) -> int:
    """Copy rows to their place, which must follow the rows before it; the number of the next row.

    The whole tensor is made with the first of them: without all others it would hold memory as it was found.
    """
    if not isinstance(place, list) or not _is_place(place):
        raise ValueError(f"{where}: expected [first row, shape] as its place, got {str(place)[:80]}")
    begin, shape = place
    count = int(part.shape[0]) if part.ndim else 0
    if count == 0 and name in whole:
        return expected
    known = list(whole[name].shape) if name in whole else shape
    if list(part.shape[1:]) != shape[1:] or known != shape or begin + count > shape[0] or begin != expected:
        got = f"rows {begin} and more of shape {list(part.shape)}"
        raise ValueError(f"{where}: expected what follows {expected} rows of {known}, got {got}")
    if name not in whole:
        whole[name] = part.new_empty(shape)
    whole[name][begin : begin + count] = part
    return expected + count


def _is_place(place: list[Any]) -> bool:
    if len(place) != 2 or not isinstance(place[1], list) or not place[1]:
        return False
    return all(type(number) is int and 0 <= number < 1 << 48 for number in [place[0], *place[1]])


FORMATS: dict[str, SaveFormat] = {each.name: each for each in (HuggingFace(), Native(), VerlPt())}


def save_format(name: str) -> SaveFormat:
    """ValueError names the formats there are."""
    if name not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(sorted(FORMATS))}, got {name!r}")
    return FORMATS[name]


_TRIES = 5


def read_state_dict(directory: str | Path, *, checksums: bool = False) -> dict[str, torch.Tensor]:
    """The whole tensors by name, on the CPU. `directory`: what `fsdp_save_state_dict` was given.

    ValueError unless it has a manifest whose file sizes match, with `checksums` also their contents. What is
    returned is one save, also while the next one replaces it: files are read again then, and a directory that
    is saved into all the time, or is between two saves, is a ValueError.
    """
    folder = Path(directory)
    for _ in range(_TRIES):
        before = _manifest(folder, checksums)
        try:
            whole = _read(folder)
        except (OSError, ValueError, RuntimeError):  # the core's errors of files are RuntimeErrors
            if _manifest(folder, False) == before:
                raise
            continue
        if _manifest(folder, False) == before:
            return whole
    raise ValueError(f"{folder}: saved again while it was read, {_TRIES} times; read it between two saves")


def _manifest(folder: Path, checksums: bool) -> bytes:
    """The manifest as it is, of a complete save; ValueError of any other."""
    found = layout.problems(folder, checksums)
    if found:
        raise ValueError(f"{folder}: not a complete save: {'; '.join(found)}")
    try:
        return (folder / layout.MANIFEST).read_bytes()
    except FileNotFoundError:  # taken away by the next save since
        raise ValueError(f"{folder}: not a complete save: the next one replaces it") from None


def _read(folder: Path) -> dict[str, torch.Tensor]:

    names = [file.name for file in _C.read_manifest(str(folder)).files]
    for each in FORMATS.values():
        if each.recognises(names):
            return each.read(folder, names)
    raise ValueError(f"{folder}: its manifest lists no weights: {', '.join(names)}")
