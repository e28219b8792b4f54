"""`model-<r>-of-<W>.safetensors`: every rank's rows, their places in the metadata. No pickle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.runtime.regular_files import check_regular
from fastsft.weight_sync.formats import WrittenFile, register, temporary_name, written_file
from fastsft.weight_sync.range_file import RangeFile, header
from fastsft.weight_sync.staging import bytes_of

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.staging import Snapshot

_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")


@register
class Native:
    """Local rows; `fastsft_rows` of the metadata says which, and the whole shape."""

    name = "native"

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> list[WrittenFile]:
        name = f"model-{snapshot.rank:05d}-of-{snapshot.world_size:05d}.safetensors"
        tensors, places = [], {}
        for number, (tensor_name, dtype, shape) in enumerate(snapshot.plan.tensors):
            part = snapshot.parts[number]
            tensors.append((tensor_name, dtype, list(part.tensor.shape)))
            places[tensor_name] = [part.begin, shape] if part.is_sharded else None
        parts = [snapshot.parts[number].tensor for number in range(len(tensors))]
        metadata = {"fastsft_rows": json.dumps(places)}
        prefix, begins = header(tensors, [rows.nbytes for rows in parts], metadata)
        with RangeFile(directory / temporary_name(name, tag)) as file:
            file.write_at(0, prefix)
            for begin, rows in zip(begins, parts, strict=True):
                file.write_at(begin, bytes_of(rows))
            file.finish()
        return [written_file(directory, name, tag)]

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


def _places(metadata: dict[str, str] | None, path: Path) -> dict[str, Any]:
    try:
        places = json.loads((metadata or {})["fastsft_rows"])
        if isinstance(places, dict):
            return places
    except (KeyError, ValueError, RecursionError):
        pass
    raise ValueError(
        f'{path}: expected "fastsft_rows" in its metadata, an object with the place of each tensor'
    )


def _put(whole: dict[str, Any], name: str, part: torch.Tensor, place: Any, expected: int, where: str) -> int:
    """Copy rows to their place, which must follow the rows before it; the number of the next row.

    The whole tensor is made with the first of them: without all others it would hold memory as it was found.
    """
    if not _is_place(place):
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


def _is_place(place: Any) -> bool:
    if not isinstance(place, list) or len(place) != 2 or not isinstance(place[1], list) or not place[1]:
        return False
    return all(type(number) is int and 0 <= number < 1 << 48 for number in [place[0], *place[1]])
