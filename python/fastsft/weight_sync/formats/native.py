"""`model-<r>-of-<W>.safetensors`: every rank's rows, their places in the metadata. No pickle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        for name in sorted(name for name in names if _SHARD.fullmatch(name)):
            with safe_open(directory / name, "pt") as file:
                places = json.loads(file.metadata()["fastsft_rows"])
                for tensor_name, place in places.items():
                    _put(whole, tensor_name, file.get_tensor(tensor_name), place)
        return whole


def _put(whole: dict[str, Any], name: str, part: torch.Tensor, place: list[Any] | None) -> None:
    if place is None:
        whole.setdefault(name, part)
        return
    begin, shape = place
    if name not in whole:
        whole[name] = part.new_empty(shape)
    whole[name][begin : begin + part.shape[0]] = part
